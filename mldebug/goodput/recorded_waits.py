"""Which rank arrives last at collectives, by the durations that PyTorch's Flight Recorder has measured on the GPUs.

With `TORCH_NCCL_ENABLE_TIMING=1` each entry has `duration_ms`: from when this rank's stream came to the collective until it was done. All
members are done at the same moment, so the rank that came last has the shortest one, and another rank has waited for as long as its own is longer. That is what
GPUs wait for each other; the stacks of hosts that only wait for their GPUs do not show it.

The waits in all groups of a rank count, each over the time that its recorded calls cover: who comes late to one because it has waited in another
is not to blame. Ranks are compared only where every rank has timed every group that it uses: of one whose timing is off nothing is known. The
judgement is that of the samples (`straggler`), with these waits in place of theirs.

Where a run has ranks on several nodes, each node sends what its ranks have recorded (`condensed`), `BLOCK` calls with neighbouring numbers as one,
and the coordinator compares the same calls on all ranks (`waits_of_nodes`). Pure.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from mldebug.core.model import FlightRecord, TimedCall, TimedCalls
from mldebug.core.ranksets import unfold
from mldebug.goodput.speed_trend import SlowerSteps
from mldebug.goodput.straggler import (
    Excess,
    SampledStretch,
    Slowness,
    find_slow_ranks,
    is_confirmed,
    needs_more,
)

LEAST_CALLS = 8  # that all ranks have recorded
BLOCK, LEAST_BLOCKS = 8, 2  # calls, and blocks of them; the first of these only begins the span
LATE = "late"  # kind of `Excess`


def recorded_waits(
    records: Mapping[int, FlightRecord], world_size: int, least: int = LEAST_CALLS
) -> dict[int, float]:
    """The share of the time that each rank has waited for others in collectives, 0 to 1, by rank. Empty where that is not known of every rank:
    one has recorded no durations of a group that it uses, there is no group of all ranks, too few calls are common to its members, or ranks
    send each other something (stages of a pipeline have work of their own). `least`: calls that all members must have recorded.
    """
    if world_size < 2 or len(records) != world_size:
        return {}
    everybody = set(records)
    if not (0 <= min(everybody) <= max(everybody) < world_size) or not all(
        map(_is_timed, records.values())
    ):
        return {}
    waits = dict.fromkeys(records, 0.0)
    has_all = False
    for (_, _, members), some in _by_group(records).items():
        if set(some) != set(unfold(members)):
            return {}
        shares = _waits_of_group({rank: one.calls for rank, one in some.items()}, least)
        if shares is None:
            return {}
        for rank, share in shares.items():
            waits[rank] += share
        has_all = has_all or set(some) == everybody
    return {rank: min(1.0, wait) for rank, wait in waits.items()} if has_all else {}


def condensed(record: FlightRecord) -> tuple[TimedCalls, ...]:
    """What a rank has recorded, small enough to be sent to another node: for each group, those calls whose numbers divided by `BLOCK` are the same
    as one call (its number that quotient, its duration their sum, its time seconds since the first one). Empty where it has not timed all that it uses.
    """
    if not _is_timed(record):
        return ()
    return tuple(msgspec.structs.replace(one, calls=_blocks(one.calls)) for one in record.timed)


def waits_of_nodes(
    timed: Mapping[int, tuple[TimedCalls, ...]], world_size: int
) -> dict[int, float]:
    """The share of the time that each rank has waited for others, as `recorded_waits` gives it, from the `condensed` records of all ranks of a run
    that several nodes have sent.
    """
    records = {rank: FlightRecord(timed=some) for rank, some in timed.items() if some}
    return recorded_waits(records, world_size, LEAST_BLOCKS)


def _blocks(calls: Sequence[TimedCall]) -> tuple[TimedCall, ...]:
    found: dict[int, list[TimedCall]] = {}
    for call in calls:
        found.setdefault(call.sequence // BLOCK, []).append(call)
    begun = min((call.created_at for call in calls), default=0.0)
    return tuple(
        TimedCall(
            sequence=number,
            seconds=round(sum(call.seconds for call in some), 6),
            created_at=round(min(call.created_at for call in some) - begun, 6),
        )
        for number, some in sorted(found.items())
        if len(some) == BLOCK
    )


def with_recorded(stretch: SampledStretch, waits: Mapping[int, float]) -> SampledStretch:
    """The stretch with what the Flight Recorders of its ranks show of the same seconds."""
    ranks = tuple(
        msgspec.structs.replace(one, recorded=waits.get(one.rank)) for one in stretch.ranks
    )
    return msgspec.structs.replace(stretch, ranks=ranks)


def find_late_ranks(
    found: Slowness, row: Sequence[SampledStretch], slower: SlowerSteps | None = None
) -> Slowness:
    """Compare the ranks by the waits that were recorded in the same periods (`row`), where the comparison of their stacks (`found`) has
    found no slow rank. Returns `found` where the records show none either.

    A GPU may compute while it waits in a collective, so that recorded waits do not say how much time the run loses: that is known only
    from steps that take longer than before (`slower`).
    """
    timed = _by_records(row)
    if found.ranks or not timed:
        return found
    late = find_slow_ranks(timed)
    if not late.ranks:
        return found
    named = {one.rank for one in late.ranks}
    others = median(one.waiting for one in late.shares if one.rank not in named)
    ranks = tuple(
        one
        if one.cause
        else msgspec.structs.replace(one, excess=Excess(kind=LATE, own=one.waiting, others=others))
        for one in late.ranks
    )
    loss = 1 - 1 / slower.times if slower else 0.0
    return msgspec.structs.replace(late, ranks=ranks, recorded=True, loss=loss)


def is_confirmed_late(row: Sequence[SampledStretch], found: Slowness) -> bool:
    """Whether both halves of the row show the ranks that the records of all of it show (`found`)."""
    return is_confirmed(_by_records(row), found)


def needs_more_records(row: Sequence[SampledStretch]) -> bool:
    """Whether to sample once more, because a rank waits clearly less than all others by what was recorded, and this is not certain yet."""
    timed = _by_records(row)
    return bool(timed) and needs_more(timed)


def _by_records(row: Sequence[SampledStretch]) -> list[SampledStretch]:
    """The row with the recorded waits in place of those of the stacks; empty where one rank has none in one stretch."""
    if any(one.recorded is None for stretch in row for one in stretch.ranks):
        return []
    return [
        msgspec.structs.replace(
            stretch,
            ranks=tuple(
                msgspec.structs.replace(
                    one, waiting=one.recorded or 0.0, idle_waiting=0.0, on_gpu=0.0, loading=0.0
                )
                for one in stretch.ranks
            ),
        )
        for stretch in row
    ]  # fmt: skip


Group = tuple[
    str, str, str
]  # name, backend and members: names of groups of a few come again on other ranks


def _is_timed(record: FlightRecord) -> bool:
    """Whether the durations of all collectives are known that this rank has made with others, and it makes no transfers."""
    timed = {(one.group, one.backend) for one in record.timed}
    used = {
        (one.name, one.backend)
        for one in record.groups
        if one.completed and not one.members.isdigit()
    }
    return used <= timed and not (record.pairs or record.transfers or record.sends)


def _by_group(records: Mapping[int, FlightRecord]) -> dict[Group, dict[int, TimedCalls]]:
    found: dict[Group, dict[int, TimedCalls]] = {}
    for rank, record in records.items():
        for one in record.timed:
            found.setdefault((one.group, one.backend, one.members), {})[rank] = one
    return found


def _waits_of_group(
    calls: Mapping[int, Sequence[TimedCall]], least: int
) -> dict[int, float] | None:
    """The share of the time of each member; None where too few calls are common to all of them."""
    tables = {rank: {call.sequence: call for call in own} for rank, own in calls.items()}
    common = sorted(set.intersection(*(set(one) for one in tables.values())))
    if len(common) < least:
        return None
    first, last = common[0], common[-1]
    span = median(own[last].created_at - own[first].created_at for own in tables.values())
    if span <= 0.0:
        return None
    waits = dict.fromkeys(tables, 0.0)
    for number in common[1:]:  # the first only begins the span
        shortest = min(own[number].seconds for own in tables.values())
        for rank, own in tables.items():
            waits[rank] += own[number].seconds - shortest
    return {rank: wait / span for rank, wait in waits.items()}
