"""Which code is traced: chosen by packages, modules, functions, folders, or "uninstalled".

A word is one of

* `PIL`, `torch.nn`: a package or a module with all below it, by the name that it was imported as, so an editable install and
  a namespace package are what they are called; a script started by `python -m pkg.train` is `pkg.train`;
* `pkg.module:function`, `pkg.module:Class.method`: one function with those inside it (before Python 3.11 a code object knows no
  class: every `method` of the module is meant);
* `/data/project`, `./train.py`: what lies there;
* `uninstalled`: what belongs neither to Python itself nor to a site-packages; `everything`: all of it.

No word asks a file system once tracing has begun: the place of a file server may be dead by then.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import Any, Callable

    Test = Callable[["Code"], bool]

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # of the whole package
UNINSTALLED, EVERYTHING = "uninstalled", "everything"
NEAR = 6  # frames between the question and the code that it is about


class Code:
    """The file, module and name of a code object, by which filters choose."""

    def __init__(self, code: CodeType, names: dict[str, Any] | None) -> None:
        self.line = code.co_firstlineno
        self.name = getattr(code, "co_qualname", code.co_name)
        self.path = code.co_filename
        self.module = _module(names or {})
        if self.path[:1] == "<" and names and isinstance(names.get("__file__"), str):
            self.place = os.path.abspath(names["__file__"])  # generated: it belongs to its module
        else:
            self.place = self.path if self.path[:1] == "<" else os.path.abspath(self.path)


class CodeFilter:
    """Decides which code is traced. Raises ValueError for an invalid word."""

    def __init__(
        self, include: Sequence[str], exclude: Sequence[str] = (), start: str = ""
    ) -> None:
        self.words = (
            f"include={','.join(include) or EVERYTHING} exclude={','.join(exclude) or '-'} "
            f"start={start or '-'}"
        )
        self._yes = [_test(word) for word in include or (EVERYTHING,)]
        self._no = [_test(word) for word in exclude]
        self._start = start

    def describe(self, words: str) -> None:
        """Add words to `words`, the description of what is traced, which is written into the ring file."""
        self.words += f" {words}"

    def follows(self, code: Code) -> bool:
        """Whether the code is to be traced; mldebug's own never is."""
        if code.place.startswith(OURS):
            return False
        return any(test(code) for test in self._yes) and not any(test(code) for test in self._no)

    def begins(self, code: Code) -> bool:
        """Whether the code is the function with which tracing starts."""
        return is_called(self._start, code)


def is_called(word: str, code: Code) -> bool:
    """Whether the code is the function named by `word` (`function` or `module:function`) or inside it."""
    module, colon, name = word.rpartition(":")
    return not (colon and not _below(code.module, module)) and _is_function(code, name)


def globals_of(code: CodeType) -> dict[str, Any] | None:
    """The globals of the frame that runs this code, if it is among the nearest 6 frames (the caller included); otherwise None."""
    frame = sys._getframe(1)
    for _ in range(NEAR):
        if frame.f_code is code:
            return frame.f_globals
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def folders() -> tuple[str, ...]:
    """The folders of Python itself and of installed packages, resolved, each ending in a slash."""
    import site
    import sysconfig

    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [sysconfig.get_paths().get(kind, "") for kind in kinds]
    found += getattr(site, "getsitepackages", list)()
    found += [getattr(site, "getusersitepackages", str)()]
    found += [
        one for one in sys.path if os.path.basename(one) in ("site-packages", "dist-packages")
    ]
    found += [os.path.dirname(os.path.abspath(os.__file__))]
    every = [one for one in found if one]
    every += [os.path.realpath(one) for one in every]
    return tuple(sorted({os.path.abspath(one) + os.sep for one in every}))


def _test(word: str) -> Test:
    if not word or word.strip() != word:
        raise ValueError(f"{word!r} names no package, module, function or folder")
    if word == EVERYTHING:
        return lambda code: True
    if word == UNINSTALLED:
        installed = folders()
        return lambda code: code.place[:1] != "<" and not code.place.startswith(installed)
    if os.sep in word:
        return _below_folder(word)
    module, colon, name = word.partition(":")
    if colon:
        return lambda code: _below(code.module, module) and _is_function(code, name)
    return lambda code: _below(code.module, word)


def _below_folder(word: str) -> Test:
    places = {os.path.abspath(word), os.path.realpath(word)}
    inside = tuple(place + os.sep for place in places)
    return lambda code: code.place in places or code.place.startswith(inside)


def _below(module: str, word: str) -> bool:
    return module == word or module.startswith(word + ".")


def _is_function(code: Code, name: str) -> bool:
    if sys.version_info < (3, 11):
        return bool(code.name == name.rpartition(".")[2])
    qualified = code.name.replace(".<locals>", "")
    return qualified == name or qualified.startswith(name + ".") or qualified.endswith("." + name)


def _module(names: dict[str, Any]) -> str:
    name = names.get("__name__")
    if name == "__main__":
        name = getattr(names.get("__spec__"), "name", name)
    return name if isinstance(name, str) else ""
