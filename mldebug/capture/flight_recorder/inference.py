"""What dumps do not tell and the dumps of the other ranks do: who is in a group, and which backend counts its calls.

Gloo names no members. Its default group is all ranks, as far as there are dumps or a list of all; of another group only
those are known that have called something in it.
"""

from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

from mldebug.capture.flight_recorder.dump import DEFAULT, NO_BACKEND
from mldebug.core.model import FlightGroup, FlightRecord
from mldebug.core.ranksets import fold_ranks


def filled(records: Mapping[int, FlightRecord]) -> dict[int, FlightRecord]:
    """The records with members and backends of all groups, as far as they can be had; records in order of rank."""
    backends: dict[tuple[str, str], str] = {}
    callers: dict[tuple[str, str], list[int]] = {}
    for rank, record in sorted(records.items()):
        for group in record.groups:
            callers.setdefault((group.backend, group.name), []).append(rank)
            if group.backend != NO_BACKEND:
                backends.setdefault((group.name, group.members), group.backend)

    @cache
    def guess(backend: str, name: str, default: bool) -> str:
        return fold_ranks(_all(records) if default else callers[backend, name])

    def fill(group: FlightGroup) -> FlightGroup:
        if group.members and group.backend != NO_BACKEND:
            return group
        known = backends.get((group.name, group.members), NO_BACKEND)
        backend = known if group.backend == NO_BACKEND else group.backend
        default = group.description == DEFAULT
        members = group.members or guess(group.backend, group.name, default)
        return msgspec.structs.replace(group, backend=backend, members=members)

    return {
        rank: msgspec.structs.replace(one, groups=tuple(map(fill, one.groups)))
        for rank, one in sorted(records.items())
    }


def _all(records: Mapping[int, FlightRecord]) -> Iterable[int]:
    """The ranks of a job as its dumps are numbered; a wild number makes no members."""
    last = max(records)
    return range(last + 1) if last <= 4 * len(records) + 64 else records
