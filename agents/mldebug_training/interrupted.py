"""Tells the exceptions of the job from ours: a signal handler of the job runs between any two lines of ours, and may raise.

`signal.alarm` with a handler that raises TimeoutError is how many a job ends what takes too long. What our code swallows
for the sake of the training would swallow that as well.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any


def pass_on(error: BaseException) -> None:
    """Raise it again where a handler of the job has raised it; return where it is nobody's concern.

    What an exception was raised by that another thread has set (`PyThreadState_SetAsyncExc`) cannot be told: it is ours then.
    """
    if _is_the_jobs(error):
        raise error


def _is_the_jobs(error: BaseException) -> bool:
    handlers = [_code(_signal.getsignal(number)) for number in _signal.valid_signals()]
    step = error.__traceback__
    while step is not None:
        if any(step.tb_frame.f_code is code for code in handlers):
            return True
        step = step.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """Of the Python function that a handler is, or calls: a method, a `partial`, an object that can be called."""
    try:
        handler = getattr(handler, "func", handler)
        handler = getattr(handler, "__func__", handler)
        found = getattr(handler, "__code__", None) or type(handler).__call__.__code__
        return found if type(found) is _CODE else None
    except Exception:  # SIG_DFL, C code, a class of the job
        return None


_CODE = type(_code.__code__)
