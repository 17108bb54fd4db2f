"""One reading of a filesystem, turned into metric values, a table row, and an alert where the filesystem does not answer."""

from collections.abc import Iterator

import msgspec

from mldebug.core.units import size_words
from mldebug.storage.filesystems import fullness
from mldebug.storage.filesystems.forecast import Forecast
from mldebug.storage.filesystems.fullness import Fullness
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug_agents.storage.child.messages import MountAnswer
from mldebug_agents.storage.filesystems.mounts import UsedMount


class FilesystemReading(msgspec.Struct, kw_only=True):
    """The free space of one mount at one moment; `ahead`: forecasts for bytes and inodes."""

    used: UsedMount
    answer: MountAnswer
    now: Fullness | None = None
    ahead: tuple[Forecast, Forecast] = (Forecast(), Forecast())
    turned_read_only: bool = False


def stuck_alert(reading: FilesystemReading) -> StorageAlert:
    """The alert for a mount that does not answer."""
    ranks = len(reading.used.ranks)
    users = f": {ranks} {'rank uses' if ranks == 1 else 'ranks use'} it" if ranks else ""
    title, since = reading.used.title, fullness.about(reading.answer.stuck)
    words = f"{title} has not answered for {since}{users}"
    return StorageAlert(kind="stuck", subject=title, sentence=words)


def _figures(reading: FilesystemReading) -> Iterator[tuple[str, float]]:
    yield "stuck_seconds", reading.answer.stuck
    if reading.answer.space is None:
        return
    yield "read_only", float(reading.answer.space.read_only)
    if not reading.answer.space.size:
        return
    yield "size_bytes", float(reading.answer.space.size)
    yield "available_bytes", float(reading.answer.space.available)
    if reading.now is None:
        return
    yield "usable_free_bytes", reading.now.left
    yield "used_ratio", reading.now.share
    if reading.now.inodes:
        yield "inodes", reading.now.inodes
        yield "inodes_free", reading.now.inodes_left
    if reading.ahead[0].seconds_left is not None:
        yield "full_seconds", reading.ahead[0].seconds_left
    if reading.ahead[0].saves_left is not None:
        yield "saves_left", reading.ahead[0].saves_left
    if reading.now.inodes and reading.ahead[1].seconds_left is not None:
        yield "inodes_full_seconds", reading.ahead[1].seconds_left


def labels(used: UsedMount) -> tuple[str, ...]:
    """The label values of a mount's metrics: mount point, device, filesystem type."""
    return used.name, used.mount.device, used.mount.fstype


def measures(reading: FilesystemReading) -> Iterator[Measure]:
    """The metric values of one filesystem; unknown values are left out."""
    used = reading.used
    for name, value in _figures(reading):
        metric = f"mldebug_filesystem_{name}"
        yield Measure(metric=metric, labels=labels(used), value=value, uids=used.uids)


def filesystem_row(reading: FilesystemReading) -> Row:
    """The row of one filesystem in `mldebug status --storage`."""
    now = reading.now
    return {
        "mount": reading.used.name,
        "device": reading.used.mount.device,
        "fstype": reading.used.mount.fstype,
        "ranks": len(reading.used.ranks),
        "used_ratio": round(now.share, 4) if now else None,
        "left_bytes": int(now.left) if now else None,
        "inodes_used_ratio": round(now.inode_share, 4) if now and now.inodes else None,
        "full_seconds": reading.ahead[0].seconds_left,
        "saves_left": reading.ahead[0].saves_left,
        "stuck_seconds": reading.answer.stuck,
        "title": reading.used.title,
        "forecast": fullness.forecast_words(reading.ahead[0]),
        "reason": reading.answer.reason,
        UIDS: uids_cell(reading.used.uids),
        "line": _line(reading),
    }


def _line(reading: FilesystemReading) -> str:
    title, now = reading.used.title, reading.now
    if reading.answer.reason:
        return f"{title}: {reading.answer.reason}"
    if now is None:
        read_only = reading.answer.space is not None and reading.answer.space.read_only
        return f"{title}: {'read-only' if read_only else 'tells no size'}"
    inodes = f", inodes {now.inode_share:.0%}" if now.inodes else ""
    ahead = fullness.forecast_words(reading.ahead[0])
    left = size_words(now.left)
    return f"{title}: {now.share:.1%} used, {left} left{inodes}{f'; {ahead}' if ahead else ''}"
