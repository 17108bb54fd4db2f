"""Glances at the main threads of a job's ranks: in which system call each is blocked, by files of the kernel alone; no process is stopped."""

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.comparison.blocked_calls import RUNNING, BlockedCalls, Glance
from mldebug_agents.system.host import Host

RATE = 20.0  # looks a second, in the mean
SPREAD = 0.5  # of the time between two looks, by which it varies: steps may be as regular
GOLDEN = 0.618  # of a turn, by which looks that follow each other differ: they meet each moment of a step alike


class _Watched(NamedTuple):
    """A rank, and where the stack of its main thread begins."""

    rank: RankIdentity
    base: int


class CallReader:
    """Reads in which calls ranks are blocked. `pause` waits so many seconds, `steady` gives monotonic ones."""

    def __init__(
        self,
        host: Host,
        pause: Callable[[float], None] = time.sleep,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._pause, self._steady = host, pause, steady

    def glance(self, job: Job, seconds: float) -> Glance:
        """Look at all ranks of the job on this node for `seconds`. Ranks that cannot be read, or have ended, are left out."""
        watched = {one.rank.pid: one for rank in job.ranks if (one := self._watched(rank))}
        found = {pid: Counter[str]() for pid in watched}
        until, turn = self._steady() + seconds, 0.0
        while self._steady() < until:
            for pid, text in self._host.texts(tuple(watched), "syscall").items():
                if call := blocked_call(text, watched[pid].base):
                    found[pid][call] += 1
            turn = (turn + GOLDEN) % 1
            self._pause((1 + SPREAD * (2 * turn - 1)) / RATE)
        ranks = [_shares(one.rank.rank, found[pid]) for pid, one in watched.items()
                 if found[pid] and self._watched(one.rank) == one]  # fmt: skip
        return Glance(ranks=tuple(ranks), world_size=job.world_size)

    def _watched(self, rank: RankIdentity) -> _Watched | None:
        """None where the process has ended, or this user may not know where its stack is."""
        brief = self._host.brief(rank.pid)
        if brief is None or brief.start_ticks != rank.start_ticks:
            return None
        base = next(iter(brief.image[1:2]), 0)
        return _Watched(rank, base) if base else None


def blocked_call(text: str, base: int) -> str:
    """The call of a thread by the text of its `syscall`: its number, and how deep below `base` its stack is; "" where it cannot be read."""
    words = text.split()
    if words == ["running"]:
        return RUNNING
    if len(words) not in (3, 9):
        return ""
    try:
        return f"{int(words[0])}:{base - int(words[-2], 16):x}"
    except ValueError:
        return ""


def _shares(rank: int, counts: Counter[str]) -> BlockedCalls:
    looks = counts.total()
    return BlockedCalls(rank=rank, calls={call: count / looks for call, count in counts.items()})
