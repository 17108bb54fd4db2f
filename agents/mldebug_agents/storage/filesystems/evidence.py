"""What the last looks at filesystems add to a capture or an exit: which do not answer (matched by device, never by name), which are
full.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from mldebug.core.model import NodeCapture, ProcessCapture, RankCapture
from mldebug.diagnosis.exits.model import FilesystemFill
from mldebug.storage.filesystems.state import CollectorState, Row
from mldebug.storage.filesystems.visibility import UIDS

FRESH = 120.0  # seconds: an older reading does not count
LATELY = 600.0  # the same for how full one is, which changes slowly
AT_END = 120.0  # seconds before the evidence of an exit in which a filesystem may have been full: what ends frees its files
MOST = 32  # filesystems of one exit


def stuck_devices(state: CollectorState | None, now: float) -> dict[str, float]:
    """By major:minor: seconds for which a filesystem has not answered; empty where the last look is older than `FRESH`.
    `now`: unix time.
    """
    if state is None or not 0 <= now - state.at <= FRESH:
        return {}
    rows = state.rows.get("filesystems", ())
    stuck = [(str(row["device"]), float(row["stuck_seconds"] or 0)) for row in rows]
    return {device: seconds + now - state.at for device, seconds in sorted(stuck) if seconds > 0}


class RecentFills:
    """How full each filesystem was lately. Kept for a while, since those of an ended job are read no more and its exit still
    needs them.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[_Look]] = {}  # by device and mount, in order

    def add(self, state: CollectorState) -> None:
        """Add how full each filesystem is in `state`, the newest reading. Forgets readings that are more than `AT_END`
        seconds older, and filesystems that were not read for `LATELY` seconds.
        """
        for row in state.rows.get("filesystems", ()):
            if row["used_ratio"] is None:
                continue
            looks = self._rows.setdefault((str(row["device"]), str(row["mount"])), [])
            recent = [one for one in looks if one.at < state.at <= one.at + AT_END]
            looks[:] = [*recent[-MOST:], _Look(state.at, row)]
        self._rows = {key: looks for key, looks in self._rows.items() if state.at - looks[-1].at <= LATELY}  # fmt: skip

    def mounts_of(self, uids: AbstractSet[int]) -> tuple[str, ...]:
        """The mount points of those that these users may see. Any thread may ask: nothing of it is longer than one step of Python."""
        last = [looks[-1].row for looks in tuple(self._rows.values())]
        return tuple(str(row["mount"]) for row in last if not row.get(UIDS) or uids & _uids(row))

    def of_users(self, uids: AbstractSet[int], now: float) -> tuple[FilesystemFill, ...]:
        """The filesystems that these users may see, each with the fullest reading of the last `AT_END` seconds, else the
        last one if it is at most `LATELY` seconds old. `now`: unix time.
        """
        last = [_at_end(looks, now) for looks in self._rows.values()]
        found = [
            FilesystemFill(
                mount=str(row["mount"]),
                line=str(row["line"]),
                used_ratio=float(row["used_ratio"] or 0),
                inodes_used_ratio=float(row.get("inodes_used_ratio") or 0),
                age=now - at,
                fstype=str(row.get("fstype") or ""),
            )
            for at, row in last
            if 0 <= now - at <= LATELY and (not row.get(UIDS) or uids & _uids(row))
        ]
        return tuple(found[-MOST:])


def joined_fills(
    before: Sequence[FilesystemFill], after: Sequence[FilesystemFill]
) -> tuple[FilesystemFill, ...]:
    """The filesystems as they were before an exit (`before`) and some seconds after it, each once: the fuller reading, with the room
    that was left afterwards.
    """
    later = {one.mount: one for one in after}
    joined = [_fuller(one, later.pop(one.mount, one)) for one in before]
    return (*joined, *later.values())


def _fuller(one: FilesystemFill, after: FilesystemFill) -> FilesystemFill:
    fuller = max(one, after, key=lambda it: max(it.used_ratio, it.inodes_used_ratio))
    return msgspec.structs.replace(
        fuller,
        left_after=after.left_after,
        inodes_left_after=after.inodes_left_after,
        quotas=after.quotas,
    )


class _Look(NamedTuple):
    at: float  # unix time
    row: Row


def _at_end(looks: Sequence[_Look], now: float) -> _Look:
    """The fullest of the last looks, the latest of equals; where none is recent, the last one."""
    recent = [one for one in looks if 0 <= now - one.at <= AT_END]
    return max(reversed(recent or looks[-1:]), key=lambda one: _fill(one.row))


def _fill(row: Row) -> float:
    return max(float(row["used_ratio"] or 0), float(row.get("inodes_used_ratio") or 0))


def _uids(row: Row) -> set[int]:
    return {int(one) for one in str(row.get(UIDS) or "").split()}


def with_stuck(capture: NodeCapture, stuck: Mapping[str, float]) -> NodeCapture:
    """The capture with `stuck_seconds` where a process waits on one of these devices. `stuck`: seconds by major:minor."""
    if not stuck:
        return capture
    ranks = tuple(_rank(rank, stuck) for rank in capture.ranks)
    return msgspec.structs.replace(capture, ranks=ranks)


def _rank(rank: RankCapture, stuck: Mapping[str, float]) -> RankCapture:
    children = tuple(_process(one, stuck) for one in rank.children)
    return msgspec.structs.replace(rank, process=_process(rank.process, stuck), children=children)


def _process(one: ProcessCapture, stuck: Mapping[str, float]) -> ProcessCapture:
    target = one.blocked_on
    if target is None or target.device not in stuck:
        return one
    target = msgspec.structs.replace(target, stuck_seconds=stuck[target.device])
    return msgspec.structs.replace(one, blocked_on=target)
