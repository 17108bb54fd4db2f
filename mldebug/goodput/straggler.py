"""Who slows a run down: the rank that waits least for the others, where they wait for it in every stretch of samples.

All ranks end a step together: the slowest waits for nobody, and every other rank waits as long as it was ready earlier. The time that
all of them wait is that of the exchange itself. A rank is named only where

- at least `STRETCHES` stretches of samples agree,
- the others wait at least `LEAST` of the time more than it does, in the mean and nearly every time,
- chance would make the difference as large in less than one of 10,000 cases, by how the shares vary from stretch to stretch, and
- it stands apart: the others are closer to each other than to it.

A caller that reports a rank to people takes twice as many stretches, of which both halves have to show it (`is_confirmed`).

A rank whose CPU quota is used up stands in the same wait as those that wait for it, where the threads that exchange for it are held up
(`_without_held`).

Ranks that exchange with one neighbour each (stages of a pipeline) have different work, so none of them is named; nor is the one for
which the others do nothing but wait: that is one long step, a checkpoint or an evaluation of one rank.
Where the ranks stand on several nodes, `rests_on` names a node on whose shares alone the finding rests: without them
the rank would not stand apart. One agent that sends wrong shares can bring about no finding that rests on nobody.
Pure.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

import msgspec

from mldebug.core.model import TimedCalls
from mldebug.goodput.causes import CAUSE, Compared, OtherRanks, find_cause
from mldebug.goodput.comparison.rank_differences import (
    WaitingRow,
    is_apart,
    is_shown,
    is_sure,
    lowest,
    may_be_shown,
)
from mldebug.goodput.evidence import RankShares, mean_evidence

STRETCHES = 3  # of a row at least
MOST = 8  # of a row of which the first stretches show nothing
LONG = 2 * MOST  # of a row in which a rank may still turn out to be slow
PIPELINE = 0.5  # of the waiting in sends and receives: stages, each with work of its own
ON_GPUS, NEVER = (
    0.5,
    0.01,
)  # of the others' waiting for their GPUs; of a rank's own time, below which it does not wait for its GPU
STANDING = 0.998  # of the time: others that wait so long were in one step; its rank writes a checkpoint, evaluates, or hangs
NEARLY = 0.6  # of a clear difference, from which on more stretches may show a slow rank: noise hides one in 3 of them
WEIGHTY = 16


class SampledStretch(msgspec.Struct, frozen=True, kw_only=True):
    """Some seconds in which all ranks of a run were sampled, with each rank's shares. `at`: unix time of its end."""

    at: float
    seconds: float
    ranks: tuple[RankShares, ...]
    world_size: int = 0  # ranks of the run on all nodes; 0: those that were sampled
    timed: dict[
        int, tuple[TimedCalls, ...]
    ] = {}  # by rank what its Flight Recorder has timed, `condensed`, to be sent to the coordinator


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """What a slow rank spends more time on than the other ranks. `own`: the share of its time that goes there, 0 to 1; `others`: the
    median share of the other ranks.
    """

    kind: str  # data, cpu, sleep, work; same: the same as the others, only slower; gpu: all hosts wait for their GPUs; late: comes last to collectives
    place: str = ""  # `fetch (train.py:7)`
    own: float = 0.0
    others: float = 0.0


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank for which the others wait."""

    rank: int
    node: str = ""  # where a run has ranks on several
    waiting: float  # the share of its own time in which it waits, 0 to 1
    excess: Excess
    cause: str = ""  # kind of `mldebug.goodput.causes`, where a measurement names one
    cause_words: str = ""  # to follow "it "


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks slow a run down, by its samples; without any, `why_nobody` says why. Shares are 0 to 1."""

    ranks: tuple[SlowRank, ...] = ()  # nobody: none stands apart
    loss: float = 0.0  # share of all ranks' time spent waiting for them
    others_wait: float = 0.0  # share of the others' time
    since: float = 0.0  # unix time of the first of these stretches
    slower: float = 0.0  # how many times as long a step takes as it used to, where that and not the waiting tells who is slow
    recorded: bool = False  # by the durations of Flight Recorders, not by the stacks
    stretches: int = 0
    shares: tuple[RankShares, ...] = ()  # of each rank, the mean of all stretches, sorted by rank
    why_nobody: str = ""  # in words
    rests_on: str = (
        ""  # node on whose shares alone it rests; "": it would hold without those of any one node
    )


def find_slow_ranks(stretches: Sequence[SampledStretch]) -> Slowness:
    """Find the ranks that slow a run down, by its sampling periods (`stretches`), oldest first. Ranks that are missing in
    one of them are left out.
    """
    common, tables = _common(stretches), _tables(stretches)
    shares = tuple(_mean([one[rank] for one in tables]) for rank in sorted(common))
    since = stretches[0].at - stretches[0].seconds if stretches else 0.0
    known = Slowness(since=since, stretches=len(stretches), shares=shares)
    if len(common) < 2:
        return _nobody(known, "fewer than two ranks could be sampled")
    if len(common) < (world_size := stretches[-1].world_size):
        counted = f"{len(common)} of its {world_size} ranks were sampled here"
        return _nobody(known, f"{counted}, and the slow one may be another")
    if len(stretches) < STRETCHES:
        return _nobody(known, f"{len(stretches)} of {STRETCHES} stretches of samples are taken")
    waits = {one.rank: one.waiting for one in shares}
    if _is_pipeline(shares):
        return _nobody(known, "its ranks exchange with one neighbour each, so their work differs")
    low = lowest(waits)
    if not low:
        return _nobody(known, "no rank stands apart from the others")
    rest = [rank for rank in waits if rank not in low]
    others_wait = fmean(waits[rank] for rank in rest)
    if others_wait >= STANDING:
        return _nobody(known, "the others did nothing but wait, so no step has ended meanwhile")
    row = _waits(tables)
    if not is_sure(row, low, rest):
        return _nobody(known, "no rank is waited for all the time")
    loss = others_wait - fmean(waits[rank] for rank in low)
    nodes = {one.rank: one.node for one in shares}
    slow = _slow_ranks(shares, low, loss)
    if _differ_in_code(shares, slow):
        return _nobody(
            known,
            "the others wait for their GPUs, where it does not look at its own, so they cannot be compared",
        )
    return msgspec.structs.replace(
        known,
        ranks=slow,
        loss=loss,
        others_wait=median(waits[rank] for rank in rest),
        rests_on=_rests_on(row, low, nodes),
    )


def _slow_ranks(shares: Sequence[RankShares], low: Sequence[int], loss: float) -> tuple[SlowRank, ...]:  # fmt: skip
    """The slow ranks, each with what it does more than the others, and the cause."""
    slow = set(low)
    rest = [one for one in shares if one.rank not in slow]
    usual, others = _UsualShares(rest), OtherRanks([one.evidence for one in rest])
    return tuple(
        slow_rank(one, _excess(one, usual, loss), others, loss)
        for one in shares
        if one.rank in slow
    )


def _differ_in_code(shares: Sequence[RankShares], slow: Sequence[SlowRank]) -> bool:
    """Whether, of two ranks, one waits for its GPU, and the other shows nothing but work: `if rank == 0: print(loss.item())`. The host of
    the other runs ahead, and stands in any call once the queue of its GPU is full. Of more ranks it is the majority that runs ahead.
    """
    named = {one.rank for one in slow}
    rest = [one for one in shares if one.rank not in named]
    if len(shares) != 2 or rest[0].on_gpu <= ON_GPUS * rest[0].waiting:
        return False
    own = next(one for one in shares if one.rank in named)
    only_works = not slow[0].cause and slow[0].excess.kind in ("work", "same")
    return only_works and own.on_gpu < NEVER


def slow_rank(own: RankShares, excess: Excess, others: OtherRanks, loss: float) -> SlowRank:
    """The rank as slow, with the cause that its evidence shows against that of the `others`. `loss`: share of the run's time, 0 to 1."""
    cause, words = find_cause(Compared(own.evidence, others, loss, excess.kind))
    return SlowRank(
        rank=own.rank,
        node=own.node,
        waiting=own.waiting,
        excess=excess,
        cause=cause,
        cause_words=words,
    )


def candidates(stretches: Sequence[SampledStretch], share: float = 1.0) -> tuple[int, ...]:
    """The ranks that wait clearly less than all others in the mean of these stretches; whether chance explains that is not
    checked. `share`: how much of a clear difference is enough.
    """
    tables = _tables(stretches)
    waits = {rank: fmean(one[rank].waiting for one in tables) for rank in _common(stretches)}
    return tuple(lowest(waits, share)) if len(waits) >= 2 else ()


def is_confirmed(row: Sequence[SampledStretch], found: Slowness) -> bool:
    """Whether both halves of a row show by themselves that each rank waits less that is named in it (`found`, by `find_slow_ranks`)."""
    if len(row) < 2 * STRETCHES:
        return False
    ranks, waits = [one.rank for one in found.ranks], _waits(_tables(row))
    rest = sorted(_common(row).difference(ranks))
    middle = len(row) // 2
    return all(is_shown(half, ranks, rest) for half in (waits[:middle], waits[middle:]))


def agreed(first: Slowness, second: Slowness) -> Slowness:
    """The finding `second`, with only those of its slow ranks that `first` has named as well. They come from two separate rows of
    stretches.
    """
    known = {one.rank for one in first.ranks}
    both = tuple(one for one in second.ranks if one.rank in known)
    if both or not second.ranks:
        since, rests_on = min(first.since, second.since), second.rests_on or first.rests_on
        return msgspec.structs.replace(second, ranks=both, since=since, rests_on=rests_on)
    return msgspec.structs.replace(second, ranks=(), why_nobody="another rank is slow each time")


def needs_more(row: Sequence[SampledStretch], *, closely: bool = False) -> bool:
    """Whether to sample once more before the ranks are compared: some rank waits clearly less than all others so far (`closely`: nearly is
    enough), or, after `STRETCHES` periods, it may still turn out to be slow; and fewer than `LONG` periods were taken.
    """
    if len(row) >= LONG or len(row[-1].ranks) < row[-1].world_size:
        return False
    if len(row) < STRETCHES:
        return bool(candidates(row, NEARLY if closely else 1.0))
    common = _common(row)
    return len(common) >= 2 and may_be_shown(_waits(_tables(row)), sorted(common))


def _nobody(known: Slowness, why: str) -> Slowness:
    return msgspec.structs.replace(known, why_nobody=why)


def _tables(stretches: Sequence[SampledStretch]) -> list[dict[int, RankShares]]:
    return [{one.rank: one for one in _without_held(stretch.ranks)} for stretch in stretches]


def _without_held(ranks: Sequence[RankShares]) -> Iterator[RankShares]:
    """The shares, without the waiting of a rank in which its control group had no CPU time left while all others waited, too.

    The threads that exchange for it could not run then, so it is the one for which all wait, itself among them. While one of the
    others works, that one is waited for. A rank that spins as it waits uses up its quota by waiting, which holds nobody up. Only what a rank
    lacks more than the others counts: ranks of one control group share its quota, and those of them that spin wait no less.
    """
    throttled = sorted(one.evidence.throttled for one in ranks)
    order = sorted(one.waiting for one in ranks)
    for one in ranks:
        others = (order[1] if one.waiting == order[0] else order[0]) if len(order) > 1 else 0.0
        lacks = one.evidence.throttled - _median_without(throttled, one.evidence.throttled)
        held = min(lacks, one.idle_waiting, others)
        yield msgspec.structs.replace(one, waiting=one.waiting - held) if held > 0 else one


def _median_without(order: Sequence[float], one: float) -> float:
    """The median of sorted values without one of them; 0 where it is the only one. Of thousands of ranks each asks."""
    rest, at = len(order) - 1, bisect_left(order, one)
    if not rest:
        return 0.0
    middle = {(rest - 1) // 2, rest // 2}
    return fmean(order[number + (number >= at)] for number in middle)


def _common(stretches: Sequence[SampledStretch]) -> set[int]:
    """Ranks that were sampled in every stretch."""
    tables = _tables(stretches)
    return set.intersection(*(set(table) for table in tables)) if tables else set()


def _mean(shares: Sequence[RankShares]) -> RankShares:
    """The mean over stretches."""
    return RankShares(
        rank=shares[0].rank,
        node=shares[0].node,
        samples=sum(one.samples for one in shares),
        waiting=fmean(one.waiting for one in shares),
        loading=fmean(one.loading for one in shares),
        exchanging=fmean(one.exchanging for one in shares),
        idle_waiting=fmean(one.idle_waiting for one in shares),
        on_gpu=fmean(one.on_gpu for one in shares),
        places=_mean_of([one.places for one in shares]),
        asleep=_mean_of([one.asleep for one in shares]),
        lines={place: line for one in shares for place, line in one.lines.items()},
        delayed=fmean(one.delayed for one in shares),
        evidence=mean_evidence([one.evidence for one in shares]),
    )


def _mean_of(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    places = dict.fromkeys(place for table in tables for place in table)
    return {place: sum(table.get(place, 0.0) for table in tables) / len(tables) for place in places}


def _is_pipeline(shares: Sequence[RankShares]) -> bool:
    waiting = sum(one.waiting for one in shares)
    return waiting > 0 and sum(one.exchanging for one in shares) > PIPELINE * waiting


def _waits(tables: Sequence[Mapping[int, RankShares]]) -> WaitingRow:
    return [{rank: one.waiting for rank, one in table.items()} for table in tables]


def _rests_on(row: WaitingRow, low: Sequence[int], nodes: Mapping[int, str]) -> str:
    """The first node without whose shares a slow rank of another node would not stand apart; "" for none. A node with fewer than a
    sixteenth of the ranks moves neither the median nor the scatter so far, and is not tried: of 1,024 nodes that took minutes.
    """
    count = Counter(nodes.values())
    large = sorted(node for node, ranks in count.items() if WEIGHTY * ranks >= len(nodes))
    for node in large if len(count) > 1 else ():
        own = [rank for rank in low if nodes[rank] != node]
        others = [rank for rank in nodes if nodes[rank] != node and rank not in low]
        if own and not (others and is_apart(row, own, others)):
            return node
    return ""


class _UsualShares:
    """The medians over the ranks that are not slow. Each is found once, however many slow ranks are compared with it."""

    def __init__(self, rest: Sequence[RankShares]) -> None:
        self._rest = rest
        self.loading = median(one.loading for one in rest)
        self.delayed = median(one.delayed for one in rest)
        self._at: dict[str, float] = {}

    def at(self, place: str) -> float:
        """The median share at a place of the job."""
        if place not in self._at:
            self._at[place] = median(one.places.get(place, 0.0) for one in self._rest)
        return self._at[place]


def _excess(own: RankShares, usual: _UsualShares, loss: float) -> Excess:
    """What a slow rank does more than the others do."""
    loading, delayed = usual.loading, usual.delayed
    place = max(own.places, key=lambda name: own.places[name] - usual.at(name), default="")
    more = own.places[place] - usual.at(place) if place else 0.0
    if own.loading - loading >= max(CAUSE * loss, more):
        return Excess(kind="data", own=own.loading, others=loading)
    if own.delayed - delayed >= CAUSE * loss:
        return Excess(kind="cpu", own=own.delayed, others=delayed)
    if not place or more < CAUSE * loss:
        return Excess(kind="same")
    sleeps = own.asleep.get(place, 0.0) >= 0.5 * own.places[place]
    kind = "sleep" if sleeps else "work"
    line = own.lines.get(place)
    at = f"{place[:-1]}:{line})" if line and place.endswith(")") else place
    return Excess(kind=kind, place=at, own=own.places[place], others=usual.at(place))
