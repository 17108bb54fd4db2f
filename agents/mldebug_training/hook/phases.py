"""What a process does besides steps, reported only where it is certain: inside these calls nothing else happens.

The phases `checkpoint_save`, `checkpoint_load`, `data_wait`, `compile`. No call of PyTorch tells evaluation from training; a
framework's own loop reports it (see `frameworks`), or `with mldebug_training.phase("evaluate")`.
"""

from __future__ import annotations

import functools

from mldebug_training.common.imports import after_import
from mldebug_training.hook.process import OwnProcess, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def _in_graph() -> bool:
    """Is this being compiled? What is compiled tells no phase: each would break the graph, or keep it from being made."""
    return False


class Phase:
    """The context manager (and decorator) that `mldebug_training.phase` returns."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun: Any = None  # (the last one, those before it)

    def __enter__(self) -> None:
        if not _in_graph():
            # no call after it that a handler could end
            self._begun = own.enter(self._name), self._begun

    def __exit__(self, *_: object) -> None:
        if self._begun is not None:
            begun, self._begun = self._begun
            own.leave(begun)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Phase(self._name):
                return function(*args, **kwargs)

        return wrapper


def watch(module: ModuleType) -> None:
    """Report phases of a module (of PyTorch or safetensors) that was just imported, by wrapping its functions."""
    name = module.__name__
    if name == "torch.serialization":
        wrap_phases(module, save="checkpoint_save", load="checkpoint_load")
    elif name == "safetensors.torch":
        wrap_phases(module, save_file="checkpoint_save", load_file="checkpoint_load")
    elif name.endswith("state_dict_saver"):
        wrap_phases(module, save="checkpoint_save")
    elif name.endswith("state_dict_loader"):
        wrap_phases(module, load="checkpoint_load")
    elif name.endswith("dataloader"):
        wrap_phases(module._BaseDataLoaderIter, __next__="data_wait")
        wrap_phases(module.DataLoader, __iter__="data_wait")
    elif name.endswith("callback"):
        _watch_compiler(module)


def wrap_phases(owner: Any, **phases: str) -> None:
    """Report a phase while certain functions of `owner` run; functions that do not exist are left out."""
    for name, phase in phases.items():
        function = getattr(owner, name, None)
        if function is not None:
            setattr(owner, name, _during(phase, function))


def _during(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not own.concerns():
            return function(*args, **kwargs)
        begun = own.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            own.leave(begun)

    return wrapper


def _watch_compiler(module: ModuleType) -> None:
    begun: list[tuple[bytes, int]] = []

    def begin(
        *_: Any,
    ) -> None:  # in the thread of the backward pass, too, while the main one waits for it
        if own.is_recorded:
            begun.append(own.enter("compile"))

    def end(*_: Any) -> None:
        if begun:
            own.leave(begun.pop())

    module.on_compile_start(begin)
    module.on_compile_end(end)


def _shield(dynamo: ModuleType) -> None:
    """What tells phases around calls that no compiler follows is none of the compiler's concern either."""
    global _in_graph
    for name in ("enter", "leave", "concerns"):
        setattr(OwnProcess, name, dynamo.disable(getattr(OwnProcess, name)))
    _in_graph = dynamo.is_compiling


after_import("torch._dynamo", _shield)
