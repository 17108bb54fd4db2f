"""Arms a process that has just started: has the hook installed in PyTorch and frameworks when they are imported later.

Runs in every Python process below `mldebug run`, and does nothing where nothing of that is imported, so all slow imports wait until
then.
"""

from __future__ import annotations

import os

from mldebug_training.common.imports import after_import
from mldebug_training.hook.ranks import command_line, is_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

PHASES = (
    *("torch.serialization", "torch.utils.data.dataloader", "torch._dynamo.callback"),
    *(f"torch.distributed.checkpoint.state_dict_{name}" for name in ("saver", "loader")),
    "safetensors.torch",
)
FRAMEWORKS = (
    *("torch.amp.grad_scaler", "deepspeed.runtime.engine", "megatron.core.optimizer.optimizer"),
    *("transformers.trainer_callback", "transformers.trainer"),
    *(
        f"{package}.{name}"
        for package in ("lightning.pytorch", "pytorch_lightning")
        for name in ("loops.training_epoch_loop", "loops.evaluation_loop", "trainer.trainer")
    ),
)
TRACE = "MLDEBUG_TRACE"  # what is to be traced, as `mldebug trace run` tells it
MEMORY = "MLDEBUG_MEMORY_HISTORY"  # set by `mldebug run --memory-history`

_armed: list[bool] = []


def arm() -> None:
    """Begin to wait for the import of PyTorch and of frameworks; returns at once. A second call does nothing.

    A rank's record (see `hook.record`) begins with the import of torch, that of any other process with its first step. Two
    installations may be on the path, when `mldebug run` is used inside `mldebug run`; only one arms.
    """
    if _armed:
        return
    _armed.append(True)
    if os.environ.get(TRACE):
        from mldebug_training.tracing.start import start

        start(os.environ[TRACE])
    after_import("torch.optim.optimizer", _count_steps)
    for name in PHASES:
        after_import(name, _watch)
    for name in FRAMEWORKS:
        after_import(name, _join)
    if is_rank():
        from mldebug_training.common.signals import block

        block()
        after_import("torch", _start)
    elif (
        "--multiprocessing-fork" in command_line()
    ):  # it may come to step, with threads of C code by then
        from mldebug_training.common.signals import block

        block()


def _count_steps(module: ModuleType) -> None:
    from mldebug_training.hook.steps import count_steps

    count_steps(module)


def _watch(module: ModuleType) -> None:
    from mldebug_training.hook.phases import watch

    watch(module)


def _join(module: ModuleType) -> None:
    from mldebug_training.hook.frameworks import join

    join(module)


def _start(torch: ModuleType) -> None:
    from mldebug_training.hook import phases, values  # noqa: F401 - or a heartbeat would import them
    from mldebug_training.hook.nccl_recording import record_collectives
    from mldebug_training.hook.process import own

    record_collectives(str(getattr(torch, "__version__", "")))
    own.start()
    if os.environ.get(MEMORY):
        from mldebug_training.hook.on_request.memory_history import arm as arm_memory

        arm_memory(torch)
