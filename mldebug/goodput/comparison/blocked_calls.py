"""Whether some rank may spend its time otherwise than the others, by the system calls in which their main threads are blocked. Pure.

A "glance" looks at `/proc/PID/syscall` of each rank a hundred times, which costs a hundredth of what a stretch of stack samples costs. Ranks of one
program that wait for the same thing stand in the same call at the same depth of their stacks, so calls can be compared without knowing what they
are for. A slow rank waits less than the others in one of them, however many there are. Where no rank differs, no stack need be sampled.

A glance shows nothing (`is_blind`) where a rank could not be read, where threads wait by computing (for GPUs), where each rank stands in other
calls, or where the stacks tell two things apart that are one call here (`_mixes`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from mldebug.goodput.comparison.rank_differences import LEAST, lowest
from mldebug.goodput.evidence import RankShares

RUNNING = "running"
DIFFERS = 0.6 * LEAST  # of the time, from which on a rank may be slow: what is told is `LEAST`
FEW = 3  # ranks, of which one that differs makes another differ as much
MOST_RUNNING = 0.05  # of the time: a wait that computes may hide in so much, and would be shorter than what is told
IN_COMMON = 0.8  # of a rank's time in calls in which the others are, too
MIXED = 0.1  # of the time, by which one call may be longer than the longest thing that stacks tell apart
CHANGED = 0.1  # of the time that goes elsewhere than when stacks were last sampled
TOGETHER = 4  # glances, the mean of which is compared, too
IN_A_ROW = 5  # glances, after which stacks are sampled though no rank differs: each half an hour, by default


class BlockedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Where the main thread of one rank was found. `calls`: by the number of the call and the depth of the stack, `202:1810`, or `running`,
    the share of its time, 0 to 1.
    """

    rank: int
    calls: dict[str, float]


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of all ranks of a run that could be read, over some seconds."""

    ranks: tuple[BlockedCalls, ...] = ()
    world_size: int = 0


class GlanceMemory:
    """The glances at one attempt of a run since its stacks were last sampled."""

    def __init__(self) -> None:
        self._past: list[Glance] = []
        self._is_new = False  # the newest was followed by no stacks

    def sampled(self) -> None:
        """Stacks were sampled to the end: what comes is compared with what was just before."""
        self._past, self._is_new = self._past[-1:], False

    def forget(self) -> None:
        """Forget all glances, because what comes cannot be compared with them."""
        self._past, self._is_new = [], False

    def shows_alike(self, shares: Sequence[RankShares]) -> bool:
        """Whether the newest glance tells that no rank differs. `shares`: what stacks show that were sampled just after it."""
        if not self._is_new or is_blind(self._past[-1], shares):
            return False
        return not any(map(some_rank_differs, self._compared()))

    def wants_stacks(self, glance: Glance, shares: Sequence[RankShares]) -> bool:
        """Add the newest glance; whether stacks have to be sampled. `shares`: what the last stacks showed."""
        past = self._past
        self._past, self._is_new = [*past, glance], True
        if len(past) >= IN_A_ROW or is_blind(glance, shares):
            return True
        if past and _moved(_usual(past[0]), _usual(glance)) > CHANGED:
            return True
        return any(map(some_rank_differs, self._compared()))

    def _compared(self) -> tuple[Glance, ...]:
        """The newest glance, and the mean of the newest few."""
        return self._past[-1], _mean(self._past[-TOGETHER:])


def is_blind(glance: Glance, shares: Sequence[RankShares]) -> bool:
    """Whether the glance tells nothing about who waits for whom. `shares`: what the last stacks of the same ranks showed."""
    ranks = [one.calls for one in glance.ranks]
    if len(ranks) < max(2, glance.world_size) or not shares:
        return True
    usual = _usual(glance)
    in_common = [sum(min(one[call], usual.get(call, 0.0)) for call in one) for one in ranks]
    return (
        median(one.get(RUNNING, 0.0) for one in ranks) > MOST_RUNNING
        or median(in_common) < IN_COMMON
        or _mixes(usual, shares)
    )


def some_rank_differs(glance: Glance) -> bool:
    """Whether one rank, or a few, lacks what the others do: by so much that it may be slow, and more than any of the others lacks."""
    usual = _usual(glance)
    lacks = {one.rank: _lack(one.calls, usual) for one in glance.ranks}
    if len(lacks) <= FEW:
        return max(lacks.values(), default=0.0) >= DIFFERS / 2
    return bool(lowest({rank: -lack for rank, lack in lacks.items()}, DIFFERS / LEAST))


def _lack(calls: Mapping[str, float], usual: Mapping[str, float]) -> float:
    """The share of the usual rank's time that goes into calls in which this one is less."""
    return sum(max(0.0, share - calls.get(call, 0.0)) for call, share in usual.items())


def _moved(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """The share of the time that goes into other calls than before."""
    return max(_lack(now, before), _lack(before, now))


def _mixes(usual: Mapping[str, float], shares: Sequence[RankShares]) -> bool:
    """Whether a call takes longer than each of the things that the stacks tell apart: then it is part of several."""
    longest = median(max((one.waiting, one.loading, *one.places.values())) for one in shares)
    return max(usual.values(), default=1.0) > longest + MIXED


def _usual(glance: Glance) -> dict[str, float]:
    """By call the median share of all ranks; those are left out in which most ranks never are."""
    calls = dict.fromkeys(call for one in glance.ranks for call in one.calls)
    shares = {call: median(one.calls.get(call, 0.0) for one in glance.ranks) for call in calls}
    return {call: share for call, share in shares.items() if share}


def _mean(glances: Sequence[Glance]) -> Glance:
    """The mean of glances, of the ranks that are in all of them."""
    tables = [{one.rank: one.calls for one in glance.ranks} for glance in glances]
    common = set.intersection(*(set(table) for table in tables))
    found = []
    for rank in sorted(common):
        total: Counter[str] = Counter()
        for table in tables:
            total.update(table[rank])
        calls = {call: share / len(tables) for call, share in total.items()}
        found.append(BlockedCalls(rank=rank, calls=calls))
    return Glance(ranks=tuple(found), world_size=glances[-1].world_size)
