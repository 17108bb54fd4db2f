"""What the last look at filesystems says about a capture or an exit: which have not answered (joined by device, never by name), which are full."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from mldebug.core.model import NodeCapture, ProcessCapture, RankCapture
from mldebug.diagnosis.exits.model import FilesystemFill
from mldebug.storage.filesystems.state import CollectorState, Row
from mldebug.storage.filesystems.visibility import UIDS

FRESH = 120.0  # seconds: an older reading does not count
LATELY = 600.0  # the same for how full one is, which changes slowly
MOST = 32  # filesystems of one exit


def stuck_devices(state: CollectorState | None, now: float) -> dict[str, float]:
    """By major:minor: seconds for which a filesystem has not answered; empty where the last look is older than `FRESH`."""
    if state is None or not 0 <= now - state.at <= FRESH:
        return {}
    rows = state.rows.get("filesystems", ())
    stuck = [(str(row["device"]), float(row["stuck_seconds"] or 0)) for row in rows]
    return {device: seconds + now - state.at for device, seconds in sorted(stuck) if seconds > 0}


class RecentFills:
    """How full each filesystem was when it was last read: those of a job that has ended are read no more, and are still asked for."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[float, Row]] = {}  # by device and mount: unix time

    def add(self, state: CollectorState) -> None:
        """Take a look's rows, and forget those older than `LATELY`."""
        for row in state.rows.get("filesystems", ()):
            if row["used_ratio"] is not None:
                self._rows[str(row["device"]), str(row["mount"])] = (state.at, row)
        self._rows = {key: (at, row) for key, (at, row) in self._rows.items() if state.at - at <= LATELY}  # fmt: skip

    def of_users(self, uids: AbstractSet[int], now: float) -> tuple[FilesystemFill, ...]:
        """The filesystems that these users may see, as they were at most `LATELY` seconds ago."""
        found = [
            FilesystemFill(
                mount=str(row["mount"]),
                line=str(row["line"]),
                used_ratio=float(row["used_ratio"] or 0),
                inodes_used_ratio=float(row.get("inodes_used_ratio") or 0),
                age=now - at,
            )
            for at, row in self._rows.values()
            if 0 <= now - at <= LATELY and (not row.get(UIDS) or uids & _uids(row))
        ]
        return tuple(found[-MOST:])


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
