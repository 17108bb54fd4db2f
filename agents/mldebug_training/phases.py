"""What a process does besides stepping, told only where it is certain: inside these calls nothing else goes on.

`checkpoint_save`, `checkpoint_load`, `data_wait`, `compile`. An evaluation cannot be told from training by any call that
PyTorch makes: `with mldebug_training.phase("evaluate")` says it.
"""

from __future__ import annotations

import functools

from mldebug_training.process import own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class Phase:
    """What `mldebug_training.phase` gives."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before: list[tuple[bytes, int]] = []

    def __enter__(self) -> None:
        self._before.append(own.enter(self._name))

    def __exit__(self, *_: object) -> None:
        own.leave(self._before.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _during(self._name, function)


def watch(module: ModuleType) -> None:
    """Tell the phases of one module of PyTorch that has just been imported."""
    name = module.__name__
    if name == "torch.serialization":
        _wrap(module, save="checkpoint_save", load="checkpoint_load")
    elif name.endswith("state_dict_saver"):
        _wrap(module, save="checkpoint_save")
    elif name.endswith("state_dict_loader"):
        _wrap(module, load="checkpoint_load")
    elif name.endswith("dataloader"):
        _wrap(module._BaseDataLoaderIter, __next__="data_wait")
    elif name.endswith("callback"):
        _watch_compiler(module)


def _wrap(owner: Any, **phases: str) -> None:
    for name, phase in phases.items():
        setattr(owner, name, _during(phase, getattr(owner, name)))


def _during(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before = own.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            own.leave(before)

    return wrapper


def _watch_compiler(module: ModuleType) -> None:
    before: list[tuple[bytes, int]] = []

    def begin(*_: Any) -> None:
        before.append(own.enter("compile"))

    def end(*_: Any) -> None:
        if before:
            own.leave(before.pop())

    module.on_compile_start(begin)
    module.on_compile_end(end)
