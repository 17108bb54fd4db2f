"""The debug FIFO of legacy NCCL: one byte makes the rank dump its Flight Recorder into a file, and train on.

The dump gathers the Python frames of every call, which took 57 s the first time on an H200, and needs the interpreter lock. So a
rank is asked only after every cheaper way, never while an earlier question is open, and each gets one byte.
"""

import errno
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mldebug.model import RankIdentity
from mldebug_agents.flights.files import Found, Mark, mark, newest, read_dump
from mldebug_agents.reader import Reader

LONGEST = 15.0  # seconds for all answers together
MAX_OPEN = 256  # questions without an answer that are remembered
PAUSE = 0.1  # seconds between two looks whether a file has changed
_WHY = {
    errno.ENXIO: "nobody reads its debug FIFO",
    errno.EAGAIN: "its debug FIFO is full: nobody reads it",
    errno.ENOENT: "it has made no debug FIFO",
    errno.EACCES: "its debug FIFO may not be written",
    errno.EPERM: "its debug FIFO may not be written",
}
OPEN = "an earlier question has not been answered yet, so it was not asked again"


class Asked(NamedTuple):
    """One rank: its FIFO and the files that it dumps into, as they are found from here."""

    identity: RankIdentity
    fifo: str
    dumps: tuple[str, ...]


class Fifo:
    """Keep one: it remembers who still owes an answer."""

    def __init__(
        self,
        reader: Reader,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._sleep = sleep
        self._open: dict[tuple[int, int], tuple[Mark | None, ...]] = {}  # (pid, start)

    def ask(self, asked: Sequence[Asked], timeout: float) -> dict[int, Found | str]:
        """By rank, the dump or why there is none. Waits `timeout` seconds at most, and never longer than `LONGEST`."""
        deadline = self._clock() + min(timeout, LONGEST)
        told: dict[int, Found | str] = {}
        waiting = {one.identity.rank: one for one in asked}
        for rank, one in list(waiting.items()):
            if why := self._trigger(one):
                told[rank] = why
                del waiting[rank]
        reasons = dict.fromkeys(waiting, "")
        while waiting and self._clock() < deadline:
            self._sleep(PAUSE)
            self._look(waiting, told, reasons)
        for rank, why in reasons.items():
            if rank in waiting:
                told[rank] = _late(why, min(timeout, LONGEST))
        return told

    def _trigger(self, one: Asked) -> str:
        """Why it was not asked; "" where it was. A dump that has come late, and whole, closes its question."""
        key = one.identity.pid, one.identity.start_ticks
        earlier = self._open.get(key)
        if earlier is not None and not isinstance(self._answer(one, earlier), Found):
            return OPEN
        before = self._marks(one)
        refused = self._reader.poke(one.fifo, one.identity.uid)
        if refused is not None:
            return _WHY.get(refused.errno or 0) or f"its debug FIFO: {refused.reason}"
        if len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._open[key] = before
        return ""

    def _look(
        self, waiting: dict[int, Asked], told: dict[int, Found | str], reasons: dict[int, str]
    ) -> None:
        """Take the answers that are complete."""
        for rank, one in list(waiting.items()):
            key = one.identity.pid, one.identity.start_ticks
            found = self._answer(one, self._open[key])
            if isinstance(found, Found):
                told[rank] = found
                del waiting[rank], self._open[key]
            else:
                reasons[rank] = found

    def _answer(self, one: Asked, before: tuple[Mark | None, ...]) -> Found | str:
        """What was dumped since; a file that has not changed since the question is no answer."""
        now = zip(one.dumps, before, self._marks(one), strict=True)
        changed = [path for path, then, mine in now if mine is not None and mine != then]
        return newest([read_dump(self._reader, path, one.identity) for path in changed])

    def _marks(self, one: Asked) -> tuple[Mark | None, ...]:
        return tuple(mark(self._reader, path) for path in one.dumps)


def _late(why: str, seconds: float) -> str:
    return f"no dump by its debug FIFO in {seconds:g} s" + (f" ({why})" if why else "")


def whom(lagging: Sequence[int], waiting: Sequence[int], alike: int = 8) -> tuple[int, ...]:
    """Whose dump is worth its price: who lags and one who waits; where nobody lags all who wait, but at most `alike`."""
    return (*lagging[:alike], *waiting[:1]) if lagging else tuple(waiting[:alike])


def seconds(lagging: Sequence[int], left: float) -> float:
    """How long a report may wait for it: where stacks tell who lags it only adds to what is known."""
    return max(0.0, min(4.0 if lagging else LONGEST, left - 5.0))
