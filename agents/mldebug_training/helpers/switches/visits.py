"""Calls of the store of torch.distributed by one thread: repeated until there is a result, more often while somebody waits for it,
ended with the process.
"""

from __future__ import annotations

import atexit
import os
import time

from mldebug_training.common import natives
from mldebug_training.common.calls import LateError
from mldebug_training.helpers.switches.meeting import longest_nap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

LONGEST = 600.0  # seconds: ranks come to a step at different times
LATE = "another rank did not poll in time"
FIRST_NAP = 0.0005  # seconds
_running: set[StoreRequests] = set()


class StoreRequests:
    """Calls of the store of torch.distributed by one thread. `size`: the number of ranks that call it; the more, the longer the
    pauses between calls.
    """

    def __init__(self, store: Any, size: int) -> None:
        self.store = store
        self._nap = longest_nap(size)
        self._ends = False
        self._waiting_since = 0.0  # since when there is no answer
        self._woken = natives.allocate_lock()
        self._woken.acquire()

    def __enter__(self) -> None:
        _running.add(self)

    def __exit__(self, *_: object) -> None:
        self.store = None  # it goes with the last one who keeps it
        _running.discard(self)

    @property
    def silent(self) -> float:
        """Seconds that a call of the store of torch.distributed has waited for its answer; 0.0 where no call waits."""
        waiting = self._waiting_since
        return time.monotonic() - waiting if waiting else 0.0

    def ask(self, name: str, *args: Any) -> Any:
        """Call the method `name` of the store of torch.distributed and return its result. Raises whatever that raises, and LateError once this
        process is ending.
        """
        if self._ends:
            raise LateError("this rank ends")
        self._waiting_since = time.monotonic()
        result = getattr(self.store, name)(*args)
        self._waiting_since = 0.0
        return result

    def values(self, keys: list[str]) -> list[bytes]:
        """The values of these keys in the store; all of them must exist, else the store waits for them."""
        if hasattr(self.store, "multi_get") and self.store.has_extended_api():
            return list(self.ask("multi_get", keys))
        return [self.ask("get", key) for key in keys]

    def until(self, ask: Callable[[], T], longest: float = LONGEST) -> T:
        """Call `ask` again and again until its result is true, and return that. Raises LateError after `longest` seconds."""
        deadline, pause = time.monotonic() + longest, FIRST_NAP
        while time.monotonic() < deadline:
            found = ask()
            if found:
                return found
            pause = FIRST_NAP if self._woken.acquire(timeout=pause) else min(2 * pause, self._nap)
        raise LateError(LATE)

    def hurry(self) -> None:
        """End the present pause of `until`, because the result is waited for now."""
        if self._woken.locked():
            self._woken.release()

    def end(self) -> None:
        """Make all further calls raise LateError, since this process is ending."""
        self._ends = True
        self.hurry()


def _end() -> None:
    """End all at the end of the process, before it waits for their threads."""
    for one in list(_running):
        one.end()


atexit.register(_end)
os.register_at_fork(after_in_child=_running.clear)
