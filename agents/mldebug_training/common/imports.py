"""Calls functions after a module has been imported. It imports nothing itself, because it runs at the start of every Python
process.
"""

from __future__ import annotations

import sys

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.natives import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Then = Callable[[ModuleType], object]


class _Afterwards:
    """Stands before all other finders, asks them, and wraps the loader of the few modules that it waits for."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Then]] = {}
        self._asking: set[tuple[int, str]] = set()  # (thread, name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the others find it; None to one of them that asks all the others, as we do."""
        question = get_ident(), name
        if name not in self.waiting or question in self._asking:
            return None
        self._asking.add(question)
        try:
            return self._found(name, path, target)
        finally:
            self._asking.discard(question)

    def _found(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                find(name, path, target) if find and finder is not self else None
            )
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _WatchedLoader(spec.loader, self.waiting)  # type: ignore[assignment]
                return spec
        return None


class _WatchedLoader:
    """The loader that the others found, and what to do after it. The module never sees it, only who asks for the spec."""

    def __init__(self, loader: Loader, waiting: dict[str, list[Then]]) -> None:
        self._loader, self._waiting = loader, waiting

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for one in self._waiting.pop(
            module.__name__, ()
        ):  # not before: many ask for a spec and never load it
            _quietly(one, module)


_finder = _Afterwards()


def after_import(name: str, then: Then) -> None:
    """Call `then(module)` once that module is imported, or now where it already is. Errors of `then` are ignored."""
    module = sys.modules.get(name)
    if module is not None:
        _quietly(then, module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.waiting.setdefault(name, []).append(then)


def _quietly(then: Then, module: ModuleType) -> None:
    try:
        then(module)
    except Exception as error:
        pass_on(error)
