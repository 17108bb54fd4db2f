"""Arms a process that has just started: what is imported later is watched. In anything but training it does nothing.

Runs in every interpreter below `mldebug run`, so what costs time to import waits until PyTorch is imported, too.
"""

from __future__ import annotations

from mldebug_training.imports import after_import
from mldebug_training.ranks import is_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def arm() -> None:
    """Watch for PyTorch. A rank has its record as soon as torch is there; any other process if it makes a step."""
    after_import("torch.optim.optimizer", _count_steps)
    for name in ("torch.serialization", "torch.utils.data.dataloader", "torch._dynamo.callback"):
        after_import(name, _watch)
    for name in ("saver", "loader"):
        after_import(f"torch.distributed.checkpoint.state_dict_{name}", _watch)
    if is_rank():
        from mldebug_training.signals import block

        block()
        after_import("torch", _start)


def _count_steps(module: ModuleType) -> None:
    from mldebug_training.steps import count_steps

    count_steps(module)


def _watch(module: ModuleType) -> None:
    from mldebug_training.phases import watch

    watch(module)


def _start(torch: ModuleType) -> None:
    from mldebug_training.process import own
    from mldebug_training.recording import record_collectives

    record_collectives(str(getattr(torch, "__version__", "")))
    own.start()
