"""Tells exceptions of the job's signal handlers from those of mldebug: a handler of the job may run, and raise, between any two lines of our
code.

Many jobs use `signal.alarm` with a handler that raises TimeoutError to end what takes too long. The hook ignores its own errors for
the sake of the training, and must not ignore that one. A frame is taken for a handler's where it was called with a signal number
and the frame it interrupted; no other call looks like that. If the handler has dropped these arguments, it is recognised only while
it is still installed. Any other exception counts as mldebug's, since passing on an error of mldebug would end a healthy job.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType
    from typing import Any

_VARARGS = 0x04  # of a code's flags: it takes `*args`


def pass_on(error: BaseException) -> None:
    """Raise the exception again where a signal handler of the job raised it; otherwise return, so that it is ignored.

    Must be called from the `except` that caught it. Exceptions set by another thread (`PyThreadState_SetAsyncExc`) or by a
    handler in C cannot be recognised, and are ignored.
    """
    if _is_the_jobs(error):
        raise error


def _is_the_jobs(error: BaseException) -> bool:
    frames = list(_frames(error))
    if not frames:  # most errors: nothing was called that is not C
        return False
    handlers = map(_signal.getsignal, _signal.valid_signals())
    codes = [_code(handler) for handler in handlers if callable(handler)]
    return any(_is_handler(frame, codes) for frame in frames)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Those that it came through, but for the one that has caught it."""
    step = error.__traceback__ and error.__traceback__.tb_next
    while step is not None:
        yield step.tb_frame
        step = step.tb_next


def _is_handler(frame: FrameType, codes: list[CodeType | None]) -> bool:
    values, back = _arguments(frame), frame.f_back
    places = [place for place, one in enumerate(values) if one is back is not None]
    if any(place and _is_number(values[place - 1]) for place in places):
        return True
    code = (
        frame.f_code
    )  # one with `*args` may be a decorator's, which stands around other functions as well
    return not code.co_flags & _VARARGS and any(code is one for one in codes)


def _is_number(value: object) -> bool:
    """An int, or what a handler has made of it: `signal.Signals`."""
    return issubclass(type(value), int) and type(value) is not bool


def _arguments(frame: FrameType) -> list[Any]:
    """What it was called with, by position, in this order; what it has deleted since is None."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    if len(names) < 2 and not code.co_flags & _VARARGS:
        return []
    known = frame.f_locals
    rest: Any = ()
    if code.co_flags & _VARARGS:
        rest = known.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    return [*map(known.get, names), *(rest if type(rest) is tuple else ())]


def _code(handler: Any) -> CodeType | None:
    """Of the Python function that a handler is, or calls: a method, a `partial`, an object that can be called.

    None of SIG_DFL and C code. Runs nothing of the job, and so never raises.
    """
    partial = getattr(sys.modules.get("functools"), "partial", None)
    while type(handler) is partial:
        handler = handler.func
    if type(handler) is _METHOD:
        handler = handler.__func__
    if type(handler) is not _FUNCTION:
        known = (vars(one).get("__call__") for one in type(handler).__mro__)
        handler = next((one for one in known if one is not None), None)
    return handler.__code__ if type(handler) is _FUNCTION else None


class _Any:
    def method(self) -> None: ...


_FUNCTION: Any = type(_code)
_METHOD: Any = type(_Any().method)
