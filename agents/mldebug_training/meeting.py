"""All ranks of a job at one place: at the job's store, where each learns that all have come there, or that they never will.

No call of a store has a deadline, and one to a host that is stopped never comes back. So a thread makes them, and nobody waits for
a thread that has heard nothing for long. What the store is told of a meeting stands below `KEY/`: `came`, `answer`, `left`.
"""

from __future__ import annotations

import atexit
import os
import time

from mldebug_training import natives
from mldebug_training.calls import ANSWERING, GOODBYE, LateError
from mldebug_training.signals import closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAP, LONG_NAP = 0.005, 0.1  # seconds, the longest between two looks
LATE = "another rank did not come to this poll in time"
SILENT = "the job's store does not answer"
LEAVING = 5.0  # seconds that whoever keeps the store waits until the others have read there
LOOK = 1.0  # seconds between two looks whether it has answered a call
_ALL = "all "  # and a number, drawn by whoever came last
_running: set[Meeting] = set()
_silent: list[Any] = []  # stores that have not answered; never asked again


class Meeting:
    """One rank at one such place. `size`: how many have to come; `is_host`: the store may end with this rank."""

    def __init__(self, store: Any, key: str, size: int, *, is_host: bool = False) -> None:
        self._store, self._key, self._size, self._is_host = store, key, size, is_host
        self._answer = self._why = ""  # what all have learned; why this rank does not come
        self._is_over = False
        self._until, self._nap = 0.0, NAP
        self._heard = time.monotonic()  # when the store has last answered
        self._claimed, self._woken = natives.allocate_lock(), natives.allocate_lock()
        self._answered, self._over = natives.allocate_lock(), natives.allocate_lock()
        for lock in (self._woken, self._answered, self._over):
            lock.acquire()

    @property
    def agreed(self) -> bool:
        """Have all ranks come here, as far as is known by now?"""
        return self._answer.startswith(_ALL)

    def come(self, timeout: float, nap: float) -> str:
        """Wait until all are here: all ranks learn that, or none does. Returns what no other meeting has. Raises LateError."""
        self._heard = time.monotonic()
        self._until, self._nap = self._heard + timeout, nap
        self._start()
        return self.hear()

    def hear(self) -> str:
        """What came of it, for one that was interrupted as well."""
        while not self._answer:
            self._answered.acquire(timeout=LOOK)
            if not self._answer and time.monotonic() > self._heard + ANSWERING:
                _silent.append(self._store)
                raise LateError(SILENT)
        if not self.agreed:
            raise LateError(self._answer)
        return self._answer[len(_ALL) :]

    def leave(self) -> None:
        """Rank 0, which keeps the store where no launcher does, may end the job only when all have read there that it ends."""
        self.wait(LEAVING + LOOK)

    def stay_away(self, why: str) -> None:
        """This rank comes no more, and all others shall know; returns at once. Too late where all have come already."""
        self._why = self._why or why
        if self._woken.locked():
            self._woken.release()
        if not self._claimed.locked():
            self._start()

    def wait(self, timeout: float) -> None:
        """Until no call is made any more."""
        if not self._is_over:  # a lock alone would stay taken where this is interrupted
            self._over.acquire(timeout=timeout)

    def _start(self) -> None:
        if any(one is self._store for one in _silent):
            raise LateError(SILENT)
        _running.add(self)
        closed(natives.start_new_thread, self._run, ())

    def _run(self) -> None:
        if not self._claimed.acquire(blocking=False):  # another thread was started before
            return
        try:
            self._answer = self._answered_there()
            self._answered.release()
            if self.agreed:
                self._last_one_out()
        except Exception as error:  # it is gone
            self._answer = self._answer or f"{SILENT}: {type(error).__name__}"
        if self._answered.locked():
            self._answered.release()
        self._is_over = True
        self._over.release()
        _running.discard(self)

    def _answered_there(self) -> str:
        store, answer = self._store, f"{self._key}/answer"
        everyone = not self._why and store.add(f"{self._key}/came", 1) == self._size
        pause = 0.0001
        while not (everyone or self._why or store.check([answer])):
            if time.monotonic() > self._until:
                break
            self._woken.acquire(timeout=pause)
            self._heard = time.monotonic()
            pause = min(2 * pause, self._nap)
        word = self._why or (f"{_ALL}{os.urandom(8).hex()}" if everyone else LATE)
        return str(store.compare_set(answer, "", word).decode("utf-8", "replace"))

    def _last_one_out(self) -> None:
        """Whoever keeps the store cleans up, too: the next launch may find the same one."""
        store, left = self._store, f"{self._key}/left"
        if store.add(left, 1) < self._size and self._is_host:
            deadline = time.monotonic() + LEAVING
            while store.add(left, 0) < self._size:
                if time.monotonic() > deadline:
                    return
                self._woken.acquire(timeout=NAP)
        if self._is_host:
            for one in ("came", "answer", "left"):
                store.delete_key(f"{self._key}/{one}")


def _end() -> None:
    """A thread that is in a call of C++ when the interpreter goes would end the process by SIGABRT as it comes back."""
    deadline = time.monotonic() + GOODBYE
    for one in list(_running):
        one.stay_away("this rank ends")
        one.wait(max(0.0, deadline - time.monotonic()))


atexit.register(_end)
os.register_at_fork(after_in_child=_running.clear)
