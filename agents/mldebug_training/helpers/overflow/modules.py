"""The modules of a model, by the names that its author knows, and hooks on them that are not copied or saved with the model."""

from __future__ import annotations

import fnmatch
import sys

from mldebug_training.common.imports import after_import
from mldebug_training.common.interrupted import pass_on
from mldebug_training.modules import _NoHook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

_WRAPPED = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_PARALLEL = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
)


def named(model: Any, skip: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Each module once, with its name (without the names of wrappers such as DDP); the model itself has the name of its class.
    `skip`: patterns of names to leave out.
    """
    parallel = type(model).__name__ in _PARALLEL
    for path, module in model.named_modules():
        name = f"{path}."
        for one in _WRAPPED:
            name = name.replace(one, "")
        if parallel:
            name = name.removeprefix("module.")
        name = name.removesuffix(".") or type(module).__name__
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in skip):
            yield name, module


def refuse_compiled(model: Any) -> None:
    """Raise ValueError where the model or a module of it was compiled (torch.compile, TorchScript), because it then calls no
    hooks.
    """
    for name, module in model.named_modules():
        way_out = _way_out(module)
        if way_out:
            raise ValueError(f"{name or 'the model'} was compiled and calls no hooks: {way_out}")


def _way_out(module: Any) -> str:
    """Of one that is compiled; empty for others."""
    if isinstance(module, sys.modules["torch"].jit.ScriptModule):
        return "watch the model that the TorchScript was made from"
    compiled = type(module).__name__ == "OptimizedModule"
    if compiled or getattr(module, "_compiled_call_impl", None) is not None:
        return "make the detector before torch.compile (slower, but right), or set TORCH_COMPILE_DISABLE=1"
    return ""


class ModuleHook:
    """A hook of one module of the model, which calls the function it was made with. In a copy of the model, in memory or on disk, it
    does nothing.
    """

    def __init__(self, call: Callable[..., None], *first: str) -> None:
        self._call, self._first = call, first

    def __call__(self, *args: Any) -> None:
        self._call(*self._first, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _NoHook, ()


def in_backward() -> bool:
    """Whether the autograd engine is running this forward again, for activation checkpointing."""
    try:
        return int(sys.modules["torch"]._C._current_graph_task_id()) != -1
    except Exception as error:
        pass_on(error)
        return False


def in_capture() -> bool:
    """Whether a CUDA graph is being recorded, during which nothing may be fetched from the GPU."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def _leave_alone(dynamo: ModuleType) -> None:
    """The compiler does not look into hooks: a break of the graph, and not a wrong one."""
    setattr(ModuleHook, "__call__", dynamo.disable(ModuleHook.__call__))  # noqa: B010 - a method may not be assigned to


after_import("torch._dynamo", _leave_alone)
