"""Calls that may never return, or must not be interrupted: a thread makes the call, and the caller waits until a deadline.

Signal handlers of the job do not run in that thread, so their exceptions leave nothing half done. A call that is late goes on in
its thread.
"""

from __future__ import annotations

import atexit
import os
import time

from mldebug_training.common import natives
from mldebug_training.common.signals import closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ANSWERING = 10.0  # seconds that the job's store has for a call
FOR_EVER = 1e8  # seconds; a lock takes no infinity
GOODBYE = 10.0  # seconds that the end of the process waits for all calls that have not come back
_running: set[BackgroundCall] = set()


class LateError(RuntimeError):
    """A result that was waited for did not come in time, or never will."""


class BackgroundCall:
    """Calls a function once, in a thread of its own that `start` begins."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = (
            function  # none once it was made: it may keep what others wait to go
        )
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_over = False
        self._claimed, self._over = natives.allocate_lock(), natives.allocate_lock()
        self._over.acquire()

    @property
    def begun(self) -> bool:
        """Whether a thread has begun the call."""
        return self._claimed.locked()

    def start(self) -> BackgroundCall:
        """Begin the call in a new thread and return this object. The call is made once, even if `start` was interrupted and
        is repeated. RuntimeError where no thread can be started.
        """
        if not self.begun:
            # before: the end of the process is not to miss a thread that has not come so far
            _running.add(self)
            try:
                closed(natives.start_new_thread, self.make, ())
            except RuntimeError:
                _running.discard(self)
                raise
        return self

    def make(self) -> None:
        """Make the call in this thread, unless another thread has begun to."""
        function = self._function
        if function is None or not self._claimed.acquire(blocking=False):
            return
        try:
            self._result = function()
        except BaseException as error:
            self._error = error
        self._function, self._is_over = None, True
        self._over.release()
        _running.discard(self)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the call to return. Returns whether it has."""
        waits = not self._is_over  # a lock alone would stay taken where this is interrupted
        if waits and self._over.acquire(timeout=min(max(0.0, timeout), FOR_EVER)):
            self._over.release()  # others may wait, too
        return self._is_over

    def result(self, timeout: float) -> Any:
        """The function's result, or raises what it raised. Raises LateError where it has not returned after `timeout` seconds."""
        if not self.wait(timeout):
            raise LateError(f"no answer after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._result


def _end() -> None:
    """A thread that is in a call of C++ when the interpreter goes would end the process by SIGABRT as it comes back."""
    deadline = time.monotonic() + GOODBYE
    for one in list(_running):
        one.wait(deadline - time.monotonic())


atexit.register(_end)
os.register_at_fork(after_in_child=_running.clear)
