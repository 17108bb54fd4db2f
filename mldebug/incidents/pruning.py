"""Which stored reports are deleted when there are too many.

One user's reports cannot displace those of others. Pure.

Reports that are too old are deleted first. Then, while there are too many reports or bytes, the
user who has most loses one: the oldest that was taken by hand, else the oldest.
"""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

BY_HAND = "manual"  # follows the job in the id of a report that was taken by hand
_BY_HAND = re.compile(rf"-{BY_HAND}(?:-\d{{2}})?$")


def is_by_hand(report_id: str) -> bool:
    """Whether a person asked for the report of this id (`mldebug dump`), so that it belongs to no incident."""
    return _BY_HAND.search(report_id) is not None


class StoredReport(msgspec.Struct, frozen=True, kw_only=True):
    """One report on disk. `made_at` is unix time."""

    id: str
    owner: int  # user id
    size: int  # bytes
    made_at: float

    @property
    def by_hand(self) -> bool:
        """Whether a person asked for the report.

        The id shows this, and the report's owner cannot change the id.
        """
        return is_by_hand(self.id)


def excess(
    kept: Sequence[StoredReport], *, oldest_allowed: float, max_reports: int, max_bytes: int
) -> tuple[str, ...]:
    """Return the ids of the reports to delete: those made before `oldest_allowed` (unix time), and those beyond
    `max_reports` reports or `max_bytes` bytes.

    The newest report always stays, and is counted as a quarter of `max_bytes` at most.
    """
    *rest, newest = sorted(kept, key=lambda one: one.id) or (None,)
    if newest is None:
        return ()
    newest = msgspec.structs.replace(newest, size=min(newest.size, max_bytes // 4))
    gone = [one for one in rest if one.made_at < oldest_allowed]
    rest = [one for one in rest if one.made_at >= oldest_allowed]
    while rest and (held := _too_much([*rest, newest], max_reports, max_bytes)):
        victim = _of_the_heaviest(rest, held)
        rest.remove(victim)
        gone.append(victim)
    return tuple(one.id for one in gone)


def _too_much(kept: Sequence[StoredReport], max_reports: int, max_bytes: int) -> Counter[int]:
    """How much of what there is too much of each owner holds; empty where all is well."""
    held: Counter[int] = Counter()
    if len(kept) > max_reports:
        held.update(one.owner for one in kept)
    elif sum(one.size for one in kept) > max_bytes:
        for one in kept:
            held[one.owner] += one.size
    return held


def _of_the_heaviest(rest: Sequence[StoredReport], held: Counter[int]) -> StoredReport:
    """The next report to delete: of the owner with most, the oldest taken by hand, else the oldest."""
    heaviest = max({one.owner for one in rest}, key=lambda owner: (held[owner], owner))
    mine = [one for one in rest if one.owner == heaviest]
    return next((one for one in mine if one.by_hand), mine[0])
