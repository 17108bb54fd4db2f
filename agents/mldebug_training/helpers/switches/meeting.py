"""A barrier at the store of torch.distributed: either every rank learns that all have come, or every rank learns that they will
not.

Calls of a store have no deadline, and one to a stopped host never returns. So a thread makes them, and no rank waits for a thread
that has had no answer for long. The keys of a meeting are below `KEY/`: `came`, `answer`, `left`.
"""

from __future__ import annotations

import atexit
import os
import time

from mldebug_training.common import natives
from mldebug_training.common.calls import ANSWERING, GOODBYE, BackgroundCall, LateError
from mldebug_training.common.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAP = 0.1  # seconds, the longest between two looks
MOST_LOOKS = 1e4  # a second, of all ranks: one process answers them all
LATE = "another rank did not come to this poll in time"
SILENT = "the job's store does not answer"
LOOK = 1.0  # seconds between two looks whether it has answered a call
_ALL = "all "  # and a number, drawn by whoever came last
_running: set[Meeting] = set()
_silent: list[Any] = []  # stores that have not answered; never asked again


class Meeting:
    """One rank's part in a barrier at the store of torch.distributed. `size`: how many ranks must come; `is_host`: this rank's
    process serves the store.
    """

    def __init__(self, store: Any, key: str, size: int, *, is_host: bool = False) -> None:
        self._store, self._key, self._size, self._is_host = store, key, size, is_host
        self._answer = self._why = ""  # the result; why this rank does not come
        self._until, self._nap = 0.0, NAP
        self._is_there = False  # the others may have counted it
        self._last_answer_at = time.monotonic()  # when the store has last answered
        self._woken, self._answered = natives.allocate_lock(), natives.allocate_lock()
        for lock in (self._woken, self._answered):
            lock.acquire()
        self._call = BackgroundCall(self._run)

    @property
    def agreed(self) -> bool:
        """Whether this rank has learned that all ranks have come."""
        return self._answer.startswith(_ALL)

    def come(self, timeout: float, nap: float) -> str:
        """Wait up to `timeout` seconds until all ranks have come. Returns a text unique to this meeting; LateError where
        not all came.

        `nap`: the longest pause between two looks at the store, seconds.
        """
        self._last_answer_at = time.monotonic()
        self._until, self._nap = self._last_answer_at + timeout, nap
        self._start()
        return self.outcome()

    def outcome(self) -> str:
        """Wait for the result of `come`, and return it. May be called again where `come` was interrupted by an exception.

        Raises LateError where not all ranks came, or the store does not answer for long. A rank that the others may have
        counted already waits for the store until the timeout of `come` is over, because it must do as they do.
        """
        store, silent = self._store, 0.0
        while not self._answer:
            before = self._last_answer_at
            self._answered.acquire(timeout=LOOK)
            # not by a clock: it goes on while this process is stopped
            silent = silent + LOOK if before == self._last_answer_at else 0.0
            bound = self._is_there and time.monotonic() < self._until
            if not self._answer and silent > ANSWERING and not bound:
                _silent.append(store)
                raise LateError(SILENT)
        if not self.agreed:
            raise LateError(self._answer)
        return self._answer[len(_ALL) :]

    def leave(self) -> None:
        """Wait until this rank's thread makes no more calls to the store, at most as long as `come` may still take and a little more. The
        thread of the rank whose process serves the store (rank 0) waits for the others: it ends when all have read whether all came.
        """
        self.wait(max(0.0, self._until - time.monotonic()) + ANSWERING)

    def stay_away(self, why: str) -> None:
        """Cancel the meeting for all ranks, with `why` as the reason that they raise; returns at once. No effect where all
        have come already.
        """
        self._why = self._why or why
        if self._woken.locked():
            self._woken.release()
        if not self._call.begun:
            self._start()

    def post_answer(self, word: str) -> str:
        """Write the result of the meeting into the store, unless another rank has. May block. Returns the result that stands."""
        answer = f"{self._key}/answer"
        return str(self._store.compare_set(answer, "", word).decode("utf-8", "replace"))

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until the thread makes no more calls."""
        self._call.wait(timeout)

    def _start(self) -> None:
        if self._store is not None and any(one is self._store for one in _silent):
            raise LateError(SILENT)
        _running.add(self)
        try:
            self._call.start()
        except RuntimeError as error:  # this thread tells the others, then, and waits for none
            pass_on(error)
            _running.discard(self)
            self._answer = self.post_answer(self._why or f"a rank has no thread left: {error}")

    def _run(self) -> None:
        try:
            self._answer = self._answered_there()
            self._answered.release()
            if self.agreed:
                self._last_one_out()
        except Exception as error:  # it is gone
            self._answer = self._answer or f"{SILENT}: {type(error).__name__}"
        if self._answered.locked():
            self._answered.release()
        self._store = None  # it may be the last to keep it
        _running.discard(self)

    def _answered_there(self) -> str:
        store, answer = self._store, f"{self._key}/answer"
        store.check([answer])  # does it answer at all?
        self._is_there = not self._why
        everyone = self._is_there and store.add(f"{self._key}/came", 1) == self._size
        pause = 0.0001
        while not (everyone or self._why or store.check([answer])):
            if time.monotonic() > self._until:
                break
            self._woken.acquire(timeout=pause)
            self._last_answer_at = time.monotonic()
            pause = min(2 * pause, self._nap)
        return self.post_answer(self._why or (f"{_ALL}{os.urandom(8).hex()}" if everyone else LATE))

    def _last_one_out(self) -> None:
        """The rank that keeps the store also cleans up: the next launch may find the same store."""
        store, left = self._store, f"{self._key}/left"
        if store.add(left, 1) < self._size and self._is_host:
            pause = 0.001
            while store.add(left, 0) < self._size:
                if time.monotonic() > self._until:
                    return
                self._woken.acquire(timeout=pause)
                pause = min(2 * pause, NAP)
        if self._is_host:
            for one in ("came", "answer", "left"):
                store.delete_key(f"{self._key}/{one}")


def longest_nap(size: int) -> float:
    """The longest pause, in seconds, between two looks at the store by one of `size` ranks: the more ranks, the longer."""
    return max(NAP, size / MOST_LOOKS)


def _end() -> None:
    """A thread that is in a call of C++ when the interpreter goes would end the process by SIGABRT as it comes back."""
    deadline = time.monotonic() + GOODBYE
    for one in list(_running):
        one.stay_away("this rank ends")
        one.wait(max(0.0, deadline - time.monotonic()))


atexit.register(_end)
os.register_at_fork(after_in_child=_running.clear)
