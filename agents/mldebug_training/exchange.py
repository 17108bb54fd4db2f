"""Numbers that all ranks put down at the job's store, and the highest of them, which all read there.

No process group: it would open a port in each rank, where whoever knocks as the job runs out of files ends it, and would stand
among the collectives of the job. A thread asks the store, whose calls have no deadline. What is there stands below `KEY/`: `came`,
`answer`, `said/RANK`; the same for all exchanges, as a rank puts its numbers down when the exchange before is answered. A store serves
one call of a process at a time: while the job waits there itself (`new_group`), an exchange waits, too.
"""

from __future__ import annotations

import atexit
import os
import time

from mldebug_training import natives
from mldebug_training.calls import Call, LateError
from mldebug_training.meeting import SILENT, Meeting, longest_nap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

LONGEST = 600.0  # seconds that an exchange lives: ranks come to a step, and so begin it, at different times
LATE = "another rank did not poll in time"
QUICK = 1.0  # seconds in which a store answers that is not silent
_running: set[Exchange] = set()


class Place:
    """Where the ranks agree, and which of them this is. `name`: the same in all of them."""

    def __init__(self, store: Any, name: str, rank: int, size: int) -> None:
        self.store, self.name, self.rank, self.size = store, name, rank, size

    def meeting(self, key: str) -> Meeting:
        """Of all of them, below this key."""
        return Meeting(self.store, key, self.size, is_host=self.rank == 0)


class Exchange:
    """One of one rank, which begins with `start`. `before`: the last one at this place."""

    def __init__(self, place: Place, numbers: Sequence[int], before: Exchange | None) -> None:
        self.turn: int = before.turn + 1 if before else 1
        self.key = ""  # what no earlier launch has had; known when the first one is over
        self._numbers = tuple(numbers)
        self._size, self._why = place.size, ""
        self._meeting = None if before else place.meeting(f"{place.name}/0")
        self._ends, self._hurries = False, False
        self._asked = 0.0  # since when the store has not answered
        self._woken = natives.allocate_lock()
        self._woken.acquire()
        self._call = Call(lambda: self._run(place, before))

    def start(self) -> None:
        """Returns at once; may be called again."""
        if not self._call.begun:
            _running.add(self)
            self._call.start()

    def result(self, timeout: float) -> tuple[int, ...]:
        """The highest of all ranks, number by number. Raises LateError after so many seconds, and what the store does."""
        self._hurries = True
        self._wake()
        if not self._call.wait(timeout):
            asked = self._asked
            raise LateError(SILENT if asked and time.monotonic() - asked > QUICK else LATE)
        told: tuple[int, ...] = self._call.result(0.0)
        return told

    def stay_away(self, why: str) -> None:
        """This rank obeys nothing that follows from it; returns at once. The others wait no longer to begin, or to obey."""
        self._why = why
        if self._meeting is not None:
            self._meeting.stay_away(why)

    def end(self) -> None:
        """Wait for the others no more."""
        self._ends = True
        self._wake()

    def _wake(self) -> None:
        if self._woken.locked():
            self._woken.release()

    def _run(self, place: Place, before: Exchange | None) -> tuple[int, ...]:
        try:
            self.key = self._begun(place, before)
            told = self._exchanged(place)
            if self._why:
                self._ask(place.meeting(f"{self.key}/{self.turn}").say, self._why)
            return told
        finally:
            _running.discard(self)

    def _begun(self, place: Place, before: Exchange | None) -> str:
        """The key, as soon as this one may begin."""
        if self._meeting is None:
            before = before or self
            while not before._call.wait(longest_nap(self._size)):
                self._go_on()
            before._call.result(0.0)
            return before.key
        told = self._meeting.come(LONGEST, longest_nap(self._size))
        self._meeting.leave()
        return f"{place.name}/{told}"

    def _exchanged(self, place: Place) -> tuple[int, ...]:
        store, words = place.store, " ".join(map(str, (self.turn, *self._numbers)))
        self._ask(store.set, f"{self.key}/said/{place.rank}", words)
        if self._ask(store.add, f"{self.key}/came", 1) < self.turn * self._size:
            return self._told(store)
        said = [_parsed(one) for one in self._ask(_values, store, self._keys())]
        highest = tuple(map(max, *said))
        self._ask(store.set, f"{self.key}/answer", " ".join(map(str, highest)))
        return highest[1:]

    def _keys(self) -> list[str]:
        return [f"{self.key}/said/{one}" for one in range(self._size)]

    def _told(self, store: Any) -> tuple[int, ...]:
        """By whoever came last."""
        key, deadline, pause = f"{self.key}/answer", time.monotonic() + LONGEST, 0.0005
        while time.monotonic() < deadline:
            if self._ask(store.check, [key]):
                turn, *numbers = _parsed(self._ask(store.get, key))
                if turn == self.turn:
                    return tuple(numbers)
            if self._woken.acquire(timeout=pause):
                pause = 0.0005
            self._go_on()
            pause = min(2 * pause, longest_nap(self._size))
        raise LateError(LATE)

    def _go_on(self) -> None:
        if self._ends:
            raise LateError("this rank ends")

    def _ask(self, call: Callable[..., Any], *args: Any) -> Any:
        self._go_on()
        self._asked = time.monotonic()
        told = call(*args)
        self._asked = 0.0
        return told


def _values(store: Any, keys: list[str]) -> list[bytes]:
    if hasattr(store, "multi_get") and store.has_extended_api():
        return list(store.multi_get(keys))
    return [store.get(one) for one in keys]


def _parsed(words: bytes) -> list[int]:
    return [int(one) for one in words.split()]


def _end() -> None:
    """Before the process waits for what it has asked the store."""
    for one in list(_running):
        one.end()


atexit.register(_end)
os.register_at_fork(after_in_child=_running.clear)
