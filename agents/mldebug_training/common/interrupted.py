"""Tells the exceptions of the job from ours: a signal handler of the job runs between any two lines of ours, and may raise.

`signal.alarm` with a handler that raises TimeoutError is how many a job ends what takes too long. What our code swallows
for the sake of the training would swallow that as well.

A frame is a handler's where Python has called it as one: with the number of a signal and the frame that was interrupted, which
is the one that it came back to. No other call looks like that. A handler may have dropped what it was given; then it is known
only while it is still in place. What remains is taken for ours: an error of ours that is passed on would end a job that
nothing is wrong with.
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

    To be called where it was caught. What an exception was raised by that another thread has set (`PyThreadState_SetAsyncExc`)
    cannot be told, nor that of a handler in C: it is ours then.
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
