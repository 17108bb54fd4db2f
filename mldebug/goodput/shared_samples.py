"""What agents send each other of how the ranks of one run wait: the call to sample at one moment, each node's shares, and the finding.

Pure. A node's shares are about its own ranks alone; whatever else comes is not believed, and costs the shares, not the announcement.
"""

import math
from collections.abc import Mapping

import msgspec

from mldebug.core.errors import UsageError
from mldebug.core.model import MeasuredData, TimedCalls
from mldebug.core.ranksets import Intervals, unfold
from mldebug.core.redact import clean
from mldebug.goodput.evidence import GPU_LIMITS, RankEvidence, RankShares
from mldebug.goodput.straggler import Slowness, SlowRank

MAX_RANKS = 64  # of one node, as it samples so many
MAX_SLOW = 64  # ranks that are named
PLACES = 3  # lines of a job that travel with a rank
MAX_PLACE = 160  # characters
OTHERS = 8  # ranks that travel with a finding beside the slow ones
MAX_SAMPLES = 100_000
MAX_GROUPS, MAX_BLOCKS = 8, 16  # of one rank's Flight Recorder that travel
MAX_SECONDS = 1e6
MOST_OF_ANYTHING = 1e15  # bytes, hertz, faults
KINDS = ("data", "cpu", "sleep", "work", "same", "gpu", "late")


class SampleCall(MeasuredData, frozen=True, kw_only=True):
    """The coordinator's call to sample all ranks of a run. `call`: names this stretch; `begins_in`: seconds until it begins."""

    call: str
    begins_in: float


class NodeSamples(MeasuredData, frozen=True, kw_only=True):
    """The shares of a node's ranks in one stretch that was called. `age`: seconds since its end, by the node's own clock."""

    call: str
    age: float
    seconds: float
    ranks: tuple[RankShares, ...]
    timed: dict[int, tuple[TimedCalls, ...]] = {}  # as in `SampledStretch`


class SharedFinding(MeasuredData, frozen=True, kw_only=True):
    """What a row of stretches of all nodes shows. `row`: names it; `calm`: rows in turn without a slow rank; `age`: seconds since
    the first stretch began (`found.since` has no value).
    """

    row: str
    calm: int = 0
    age: float = 0.0
    found: Slowness


def travelling(shares: RankShares) -> RankShares:
    """The shares without what the comparison of ranks does not need, rounded."""
    kept = sorted(shares.places, key=lambda place: -shares.places[place])[:PLACES]
    return _rounded(shares, {place: clean(place, MAX_PLACE) for place in kept})


def slim(found: Slowness) -> Slowness:
    """The finding with the shares of the slow ranks and of some others alone."""
    slow = {one.rank for one in found.ranks}
    order = sorted(found.shares, key=lambda one: (one.rank not in slow, one.rank))
    kept = sorted(order[: OTHERS + len(slow)], key=lambda one: one.rank)
    return msgspec.structs.replace(found, shares=tuple(map(travelling, kept)))


def believed_samples(samples: NodeSamples | None, ranks: Intervals) -> NodeSamples | None:
    """The shares of a node that has these ranks, cleaned; None where they cannot be: about ranks that it does not have, twice about one, or no shares."""
    if samples is None or not _fits(samples, ranks):
        return None
    shares = tuple(map(travelling, samples.ranks))
    shown = {one.rank for one in shares}
    whole = samples.timed.keys() <= shown and all(map(_is_sound_record, samples.timed.values()))
    timed = samples.timed if whole else {}
    return msgspec.structs.replace(samples, call=clean(samples.call, 40), ranks=shares, timed=timed)


def believed_finding(finding: SharedFinding | None) -> SharedFinding | None:
    """The coordinator's finding, cleaned and cut; None where its numbers cannot be."""
    if finding is None or not (0 <= finding.calm <= MAX_SAMPLES and 0.0 <= finding.age < math.inf):
        return None
    found = finding.found
    shares = found.shares[: OTHERS + MAX_SLOW]
    numbers = (found.loss, found.others_wait, *(one.waiting for one in found.ranks))
    excess = (each for one in found.ranks for each in (one.excess.own, one.excess.others))
    sound = all(map(_is_share, (*numbers, *excess))) and all(map(_is_sound, shares))
    known = all(one.excess.kind in KINDS and one.rank >= 0 for one in found.ranks)
    amounts = 0.0 <= found.slower < MOST_OF_ANYTHING and found.stretches >= 0
    if not (sound and known and amounts):
        return None
    found = msgspec.structs.replace(
        found,
        ranks=tuple(map(_clean_rank, found.ranks[:MAX_SLOW])),
        shares=tuple(map(travelling, shares)),
        why_nobody=clean(found.why_nobody, 300),
        rests_on=clean(found.rests_on, 100),
        since=0.0,
    )
    return msgspec.structs.replace(finding, row=clean(finding.row, 40), found=found)


def _fits(samples: NodeSamples, ranks: Intervals) -> bool:
    shown = [one.rank for one in samples.ranks]
    own = len(set(shown)) == len(shown) <= MAX_RANKS and all(
        any(first <= rank <= last for first, last in ranks) for rank in shown
    )
    times = 0.0 <= samples.age < math.inf and 0.0 < samples.seconds < math.inf
    return own and times and all(map(_is_sound, samples.ranks))


def _is_sound(shares: RankShares) -> bool:
    numbers = (
        *(
            shares.waiting,
            shares.loading,
            shares.exchanging,
            shares.on_gpu,
            shares.delayed,
            shares.idle_waiting,
        ),
        *(shares.evidence.throttled, shares.evidence.memory_pressure, shares.evidence.file_waiting),
        *shares.places.values(),
        *shares.asleep.values(),
    )
    evidence = shares.evidence
    amounts = (evidence.major_faults, evidence.swapped, evidence.cpus or 0, evidence.quota or 0,
               evidence.worker, evidence.busy_workers, evidence.gpu_neighbour_since, evidence.gpu_memory_since,
               evidence.gpu_clock or 0, evidence.gpu_power_limit or 0, evidence.gpu_memory or 0, evidence.port_gigabits)  # fmt: skip
    bounded = all(0 <= amount < MOST_OF_ANYTHING for amount in (*amounts, *shares.lines.values()))
    return bounded and all(map(_is_share, numbers)) and 0 < shares.samples <= MAX_SAMPLES


def _is_sound_record(record: tuple[TimedCalls, ...]) -> bool:
    return len(record) <= MAX_GROUPS and all(map(_is_sound_group, record))


def _is_sound_group(one: TimedCalls) -> bool:
    try:
        members = len(unfold(one.members))
    except UsageError:  # no set of ranks
        return False
    amounts = (amount for call in one.calls for amount in (call.seconds, call.created_at))
    bounded = all(0.0 <= amount <= MAX_SECONDS for amount in amounts)
    named = max(len(one.group), len(one.backend)) <= MAX_PLACE
    return members > 1 and named and len(one.calls) <= MAX_BLOCKS and bounded


def _is_share(value: float) -> bool:
    return 0.0 <= value <= 1.0


def _rounded(shares: RankShares, names: Mapping[str, str]) -> RankShares:
    """`names`: by place that stays, what it is called from now on."""
    return msgspec.structs.replace(
        shares,
        node=clean(shares.node, 100),
        recorded=None,  # worked out from what all nodes have timed
        waiting=round(shares.waiting, 4),
        loading=round(shares.loading, 4),
        exchanging=round(shares.exchanging, 4),
        idle_waiting=round(shares.idle_waiting, 4),
        on_gpu=round(shares.on_gpu, 4),
        delayed=round(shares.delayed, 4),
        places={name: round(shares.places[place], 4) for place, name in names.items()},
        asleep={n: round(shares.asleep[p], 4) for p, n in names.items() if p in shares.asleep},
        evidence=_clean_evidence(shares.evidence),
        lines={n: shares.lines[p] for p, n in names.items() if p in shares.lines},
    )


def _clean_evidence(one: RankEvidence) -> RankEvidence:
    return msgspec.structs.replace(
        one,
        throttled=round(one.throttled, 4),
        memory_pressure=round(one.memory_pressure, 4),
        file_waiting=round(one.file_waiting, 4),
        neighbour=clean(one.neighbour, 100),
        gpu_neighbour=None if one.gpu_neighbour is None else clean(one.gpu_neighbour, 100),
        mount=clean(one.mount, MAX_PLACE),
        mount_device=clean(one.mount_device, 24),
        mount_slow=clean(one.mount_slow, 300),
        link=clean(one.link, MAX_PLACE),
        gpu_limits=tuple(limit for limit in one.gpu_limits[:8] if limit in GPU_LIMITS),
    )


def _clean_rank(one: SlowRank) -> SlowRank:
    excess = msgspec.structs.replace(one.excess, place=clean(one.excess.place, MAX_PLACE))
    words = clean(one.cause_words, 300)
    return msgspec.structs.replace(
        one, node=clean(one.node, 100), excess=excess, cause=clean(one.cause, 20), cause_words=words
    )
