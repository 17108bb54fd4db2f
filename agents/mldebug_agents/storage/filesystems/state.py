"""What is told of one filesystem: its figures, its row, that it does not answer."""

from collections.abc import Iterator

import msgspec

from mldebug.storage.filesystems import fullness
from mldebug.storage.filesystems.forecast import Forecast
from mldebug.storage.filesystems.fullness import Fullness
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug_agents.storage.child.messages import MountAnswer
from mldebug_agents.storage.filesystems.mounts import UsedMount


class FilesystemReading(msgspec.Struct, kw_only=True):
    """One mount at one look; `ahead`: of bytes and inodes."""

    used: UsedMount
    asked: MountAnswer
    now: Fullness | None = None
    ahead: tuple[Forecast, Forecast] = (Forecast(), Forecast())
    turned_read_only: bool = False


def stuck_alert(seen: FilesystemReading) -> StorageAlert:
    """It has not answered."""
    ranks = len(seen.used.ranks)
    users = f": {ranks} {'rank uses' if ranks == 1 else 'ranks use'} it" if ranks else ""
    title, since = seen.used.title, fullness.duration_words(seen.asked.stuck)
    words = f"{title} has not answered for {since}{users}"
    return StorageAlert(kind="stuck", subject=title, sentence=words)


def _figures(seen: FilesystemReading) -> Iterator[tuple[str, float]]:
    yield "stuck_seconds", seen.asked.stuck
    if seen.asked.space is None:
        return
    yield "read_only", float(seen.asked.space.read_only)
    if not seen.asked.space.size:
        return
    yield "size_bytes", float(seen.asked.space.size)
    yield "available_bytes", float(seen.asked.space.available)
    if seen.now is None:
        return
    yield "usable_free_bytes", seen.now.left
    yield "used_ratio", seen.now.share
    if seen.now.inodes:
        yield "inodes", seen.now.inodes
        yield "inodes_free", seen.now.inodes_left
    if seen.ahead[0].seconds_left is not None:
        yield "full_seconds", seen.ahead[0].seconds_left
    if seen.ahead[0].saves_left is not None:
        yield "saves_left", seen.ahead[0].saves_left
    if seen.now.inodes and seen.ahead[1].seconds_left is not None:
        yield "inodes_full_seconds", seen.ahead[1].seconds_left


def labels(used: UsedMount) -> tuple[str, ...]:
    """Of its metrics."""
    return used.name, used.mount.device, used.mount.fstype


def measures(seen: FilesystemReading) -> Iterator[Measure]:
    """Its figures; what is not known is left out."""
    used = seen.used
    for name, value in _figures(seen):
        metric = f"mldebug_filesystem_{name}"
        yield Measure(metric=metric, labels=labels(used), value=value, uids=used.uids)


def filesystem_row(seen: FilesystemReading) -> Row:
    """For `status --storage`."""
    now = seen.now
    return {
        "mount": seen.used.name,
        "device": seen.used.mount.device,
        "fstype": seen.used.mount.fstype,
        "ranks": len(seen.used.ranks),
        "used_ratio": round(now.share, 4) if now else None,
        "left_bytes": int(now.left) if now else None,
        "inodes_used_ratio": round(now.inode_share, 4) if now and now.inodes else None,
        "full_seconds": seen.ahead[0].seconds_left,
        "saves_left": seen.ahead[0].saves_left,
        "stuck_seconds": seen.asked.stuck,
        "title": seen.used.title,
        "forecast": fullness.forecast_words(seen.ahead[0]),
        "reason": seen.asked.reason,
        UIDS: uids_cell(seen.used.uids),
        "line": _line(seen),
    }


def _line(seen: FilesystemReading) -> str:
    title, now = seen.used.title, seen.now
    if seen.asked.reason:
        return f"{title}: {seen.asked.reason}"
    if now is None:
        read_only = seen.asked.space is not None and seen.asked.space.read_only
        return f"{title}: {'read-only' if read_only else 'tells no size'}"
    inodes = f", inodes {now.inode_share:.0%}" if now.inodes else ""
    ahead = fullness.forecast_words(seen.ahead[0])
    left = fullness.size_words(now.left)
    return f"{title}: {now.share:.1%} used, {left} left{inodes}{f'; {ahead}' if ahead else ''}"
