"""How full one filesystem is at one moment, and the alerts about it. Pure."""

from collections.abc import Iterator

from mldebug.core.model import MeasuredData
from mldebug.core.units import duration_words, size_words
from mldebug.storage.filesystems.forecast import Forecast
from mldebug.storage.filesystems.limits import UsageLimit
from mldebug.storage.filesystems.state import StorageAlert


class Fullness(MeasuredData, frozen=True, kw_only=True):
    """Bytes and inodes that ordinary users can use, and how much of them is left."""

    size: float  # bytes that an ordinary user can fill before writes fail
    left: float  # bytes
    inodes: float = 0.0  # 0: not counted
    inodes_left: float = 0.0

    @property
    def share(self) -> float:
        """The share of the bytes in use, 0 to 1."""
        return 1 - self.left / self.size if self.size else 0.0

    @property
    def inode_share(self) -> float:
        """The share of the inodes in use, 0 to 1; 0 where the filesystem does not count them."""
        return 1 - self.inodes_left / self.inodes if self.inodes else 0.0


def fullness(
    size: int, free: int, available: int, inodes: int, inodes_left: int, usable: float
) -> Fullness:
    """Fullness from the figures of statvfs, in bytes.

    What is reserved for root is left out, as in `df`.

    `usable`: the share of the size (0 to 1) at which writes fail.
    """
    used = max(0, size - free)
    can = (used + available) * usable
    left = min(available, max(0.0, can - used))
    return Fullness(size=can, left=left, inodes=inodes, inodes_left=inodes_left)


def fullness_alerts(
    title: str,
    now: Fullness,
    limits: tuple[UsageLimit, float],
    ahead: tuple[Forecast, Forecast],
    early: tuple[float, int],
) -> Iterator[StorageAlert]:
    """The alerts about one filesystem.

    `title`: its name in sentences. `limits`: for bytes, and the share of inodes (0 to 1). `ahead`:
    forecasts for bytes and for inodes. `early`: (seconds, checkpoints); an alert is due when less
    is left.
    """
    if now.size and limits[0].passed(now.share, now.left):
        yield StorageAlert(
            kind="too_full",
            subject=title,
            sentence=f"{title} is {now.share:.1%} full, {size_words(now.left)} left; the alarm is {limits[0].words}",
        )
    if now.inodes and now.inode_share >= limits[1]:
        yield StorageAlert(
            kind="inodes",
            subject=title,
            sentence=f"{title} has used {now.inode_share:.1%} of its inodes, {now.inodes_left:.0f} left: without them no file can be made, whatever space there is",
        )
    if now.size and is_soon(ahead[0], early):
        yield StorageAlert(
            kind="full_soon", subject=title, sentence=f"{title}: {forecast_words(ahead[0])}"
        )
    if now.inodes and is_soon(ahead[1], early):
        sentence = f"{title}: no inode will be left in {about(ahead[1].seconds_left or 0.0)}, and no file can be made"
        yield StorageAlert(kind="inodes_soon", subject=title, sentence=sentence)


def is_soon(ahead: Forecast, early: tuple[float, int]) -> bool:
    """Whether the forecast is so near that an alert is due.

    `early`: (seconds, checkpoints); it is when less is left.
    """
    if ahead.saves_left is not None:
        return ahead.saves_left <= early[1] or (
            ahead.trusted and (ahead.seconds_left or 0.0) <= early[0]
        )
    return ahead.trusted and ahead.seconds_left is not None and ahead.seconds_left <= early[0]


def forecast_words(ahead: Forecast) -> str:
    """The forecast in words: `412 GiB every 28 min: full in 3 saves, 1 h 24 min`; "" where there is none."""
    if ahead.seconds_left is None:
        return ""
    left = about(ahead.seconds_left)
    if ahead.saves_left is None or ahead.checkpoint_bytes is None or ahead.period is None:
        return f"{size_words(ahead.per_second)}/s: full in {left}"
    checkpoint = f"{size_words(ahead.checkpoint_bytes)} every {about(ahead.period)}"
    if ahead.saves_left == 1:
        return f"{checkpoint}: the next save, due in {left}, will not fit"
    return f"{checkpoint}: full in {ahead.saves_left} saves, {left}"


def about(seconds: float) -> str:
    """A duration in words, rounded to seconds below a minute, else to minutes: `1 h 24 min`."""
    return duration_words(round(seconds) if seconds < 60 else round(seconds / 60) * 60)
