"""Adds to a capture for how long the filesystems on which its ranks wait have not answered; joined by device, never by name."""

from collections.abc import Mapping

import msgspec

from mldebug.core.model import NodeCapture, ProcessCapture, RankCapture
from mldebug.storage.filesystems.state import CollectorState

FRESH = 120.0  # seconds: an older reading does not count


def stuck_devices(state: CollectorState | None, now: float) -> dict[str, float]:
    """By major:minor: seconds for which a filesystem has not answered; empty where the last look is older than `FRESH`."""
    if state is None or not 0 <= now - state.at <= FRESH:
        return {}
    rows = state.rows.get("filesystems", ())
    stuck = [(str(row["device"]), float(row["stuck_seconds"] or 0)) for row in rows]
    return {device: seconds + now - state.at for device, seconds in sorted(stuck) if seconds > 0}


def with_stuck(capture: NodeCapture, stuck: Mapping[str, float]) -> NodeCapture:
    """The capture with `stuck_seconds` where a process waits on one of these devices. `stuck`: seconds by major:minor."""
    if not stuck:
        return capture
    ranks = tuple(_rank(one, stuck) for one in capture.ranks)
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
