"""What a process does besides stepping, told only where it is certain: inside these calls nothing else goes on.

`checkpoint_save`, `checkpoint_load`, `data_wait`, `compile`. An evaluation cannot be told from training by any call that
PyTorch makes: `with mldebug_training.phase("evaluate")` says it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from mldebug_training.imports import after_import
from mldebug_training.process import own


def phase(name: str) -> Phase:
    """`with phase("evaluate"):` What is inside is told as such; phases may be nested. Also a decorator."""
    return Phase(name)


class Phase:
    """What `phase` gives."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before: list[tuple[bytes, int]] = []

    def __enter__(self) -> None:
        self._before.append(own.enter(self._name))

    def __exit__(self, *_: object) -> None:
        own.leave(self._before.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _during(self._name, function)


def watch_phases() -> None:
    """Tell phases of what is imported from now on."""
    after_import("torch.serialization", _wrapping(save="checkpoint_save", load="checkpoint_load"))
    distributed = "torch.distributed.checkpoint.state_dict"
    after_import(f"{distributed}_saver", _wrapping(save="checkpoint_save"))
    after_import(f"{distributed}_loader", _wrapping(load="checkpoint_load"))
    after_import("torch.utils.data.dataloader", _watch_loader)
    after_import("torch._dynamo.callback", _watch_compiler)


def _wrapping(**phases: str) -> Callable[[ModuleType], None]:
    def then(module: ModuleType) -> None:
        for name, phase in phases.items():
            setattr(module, name, _during(phase, getattr(module, name)))

    return then


def _during(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before = own.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            own.leave(before)

    return wrapper


def _watch_loader(module: ModuleType) -> None:
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = _during("data_wait", iterator.__next__)


def _watch_compiler(module: ModuleType) -> None:
    before: list[tuple[bytes, int]] = []

    def begin(*_: Any) -> None:
        before.append(own.enter("compile"))

    def end(*_: Any) -> None:
        if before:
            own.leave(before.pop())

    module.on_compile_start(begin)
    module.on_compile_end(end)
