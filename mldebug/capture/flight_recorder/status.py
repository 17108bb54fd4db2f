"""`pg_status`: three numbers for each process group that tell how far a rank is, without reading its calls.

Of ranks that are equally far in the same groups, one full record is enough, with the pending calls of the others, unless somebody
waits in an older call. NCCL counts sends in these numbers too, so a rank counts as equally far only if its pending calls are also
those of the one whose full record is read.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mldebug.capture.flight_recorder.dump import MAX_LIVING
from mldebug.capture.flight_recorder.safe_load import load_plain
from mldebug.core.model import Collective, FlightGroup, FlightRecord

NCCL = "nccl"  # whose counts these are, and whose pending calls are asked for
NUMBERS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


class RankStatus(NamedTuple):
    """What a short dump (`pg_status`, `pg_config`) says of one rank: its process groups with their members, and three call
    numbers for each.
    """

    groups: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int, int, int], ...]

    @property
    def calls(self) -> int:
        """How many calls the rank has made in all groups together."""
        return sum(enqueued for _, enqueued, _, _ in self.counts)


def parse_status(data: bytes) -> RankStatus | None:
    """Parse `pg_status` and `pg_config` of a dump without calls; None where they list no group."""
    try:
        raw = load_plain(data, MAX_LIVING)
        found = msgspec.convert(raw, _StatusDump, strict=False)
    except (ValueError, RecursionError):
        return None
    groups = tuple(sorted((name, one.ranks) for name, one in found.pg_config.items()))
    counts = tuple(
        sorted((number, *(one.get(name, -1) for name in NUMBERS)) for number, one in found.pg_status.items())
    )  # fmt: skip
    return RankStatus(groups, counts) if groups and counts else None  # type: ignore[arg-type]


class _Config(msgspec.Struct, frozen=True):
    ranks: str = ""


class _StatusDump(msgspec.Struct, frozen=True):
    pg_config: dict[str, _Config] = {}
    pg_status: dict[str, dict[str, int]] = {}


def spoken_for(statuses: Mapping[int, RankStatus]) -> dict[int, int]:
    """Which ranks need no full record: {rank: the rank of the same progress whose full record stands for it}, for the largest set
    of ranks with equal status.

    Empty where another rank may wait in a call that these ranks have finished: then the full records of all are compared.
    """
    alike: dict[RankStatus, list[int]] = {}
    for rank, status in sorted(statuses.items()):
        alike.setdefault(status, []).append(rank)
    if not alike:
        return {}
    status = max(alike, key=lambda one: (len(alike[one]), one.calls))
    if any(_waits_in_older(one, status) for one in alike):
        return {}
    first, *others = alike[status]
    return dict.fromkeys(others, first)


def _waits_in_older(status: RankStatus, than: RankStatus) -> bool:
    """May it wait in a call that is done there? The numbers of groups are those of a process: they tell only where all groups are the same."""
    if status.groups != than.groups:
        return bool(_members(status) & _members(than))
    done = {number: completed for number, _, _, completed in than.counts}
    return any(completed < done.get(number, -1) for number, _, _, completed in status.counts)


def _members(status: RankStatus) -> frozenset[str]:
    """The ranks of all its groups."""
    return frozenset(rank for _, ranks in status.groups for rank in re.findall(r"\d+", ranks))


def beside(whole: FlightRecord, pending: FlightRecord) -> FlightRecord | None:
    """Complete a rank's short record (`pending`: only its unfinished calls) from the full record `whole` of a rank with the same
    progress.

    None where the two have different NCCL calls pending, none pending, or sends: then the rank's own full record is needed.
    Groups of other backends are taken from `pending` as they are.
    """
    own = {
        _key(group): _pending(group)
        for group in pending.groups
        if group.backend == NCCL and group.calls
    }
    groups = [group for group in pending.groups if group.backend != NCCL]
    for group in whole.groups:
        if group.backend != NCCL:
            continue
        here = {number: one for number, one in own.pop(_key(group), {}).items() if number > group.completed}  # fmt: skip
        if here.keys() != _pending(group).keys():
            return None
        groups.append(msgspec.structs.replace(group, calls=tuple(here.values())))
    waits = any(group.calls for group in groups if group.backend == NCCL)
    if own or not waits or whole.sends or pending.sends:
        return None
    return msgspec.structs.replace(pending, groups=tuple(groups))


def _key(group: FlightGroup) -> tuple[str, str]:
    return group.name, group.members


def _pending(group: FlightGroup) -> dict[int, Collective]:
    return {call.sequence: call for call in group.calls if not call.done}
