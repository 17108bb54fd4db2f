"""When a filesystem will be full: by its usual growth, which single bursts do not change, or by checkpoints that repeat."""

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mldebug.core.model import MeasuredData

LEAST_POINTS = 8
MOST_POINTS = 60  # of one slope: pairs grow with the square
WINDOWS = (900.0, 3600.0, 21600.0)  # seconds; the whole series is one, too
LEAST_BURSTS = 3
LEAST_RISES = 5
ALIKE = 0.35  # checkpoints differ by less from their median
ROTATES = 0.05  # of a checkpoint: what stays of it where old ones are removed
AHEAD = 12.0  # times the watched span: no forecast reaches further


class Point(NamedTuple):
    """Bytes or inodes used at `at`, unix seconds."""

    at: float
    used: float


class CheckpointBursts(NamedTuple):
    """Bursts of writing that repeat: bytes written by one, bytes that stay of it, seconds between two, unix time at which the last ended."""

    written: float
    kept: float
    period: float
    last: float


class Forecast(MeasuredData, frozen=True, kw_only=True):
    """When a filesystem will be full. None where it does not fill, or was watched for too short a time."""

    per_second: float = 0.0
    seconds_left: float | None = None
    saves_left: int | None = (
        None  # the checkpoint of this number does not fit any more; 1: the next one
    )
    checkpoint_bytes: float | None = msgspec.field(
        default=None, name="save"
    )  # what one checkpoint writes; "save" in JSON
    period: float | None = None  # seconds between two checkpoints
    trusted: bool = False  # it is no further ahead than what was watched allows


def forecast(points: Sequence[Point], free: float) -> Forecast:
    """The forecast from points in order of time; an empty one from fewer than `LEAST_POINTS`. `free`: what is left now, in the unit
    of the points.
    """
    if len(points) < LEAST_POINTS or points[-1].at <= points[0].at:
        return Forecast()
    now, span = points[-1].at, points[-1].at - points[0].at
    bursts = find_checkpoints(points)
    if bursts is None:
        slope = growth(points)
        left = max(0.0, free) / slope if slope > 0 else None
        return Forecast(per_second=slope, seconds_left=left, trusted=_near(left, span))
    space = free + points[-1].used - min(point.used for point in points if point.at >= bursts.last)
    number = _first_that_fails(bursts, space)
    if number is None:
        return Forecast(checkpoint_bytes=bursts.written, period=bursts.period)
    left = max(0.0, bursts.last + number * bursts.period - now)
    return Forecast(
        per_second=bursts.kept / bursts.period,
        seconds_left=left,
        saves_left=number,
        checkpoint_bytes=bursts.written,
        period=bursts.period,
        trusted=_near(left, span),
    )


def growth(points: Sequence[Point]) -> float:
    """Growth per second, in the points' unit: the median of the slopes over several windows of time."""
    end, span = points[-1].at, points[-1].at - points[0].at
    windows = [window for window in WINDOWS if window < span] + [span]
    slopes = []
    for seconds in windows:
        inside = [point for point in points if point.at >= end - seconds]
        if len(inside) >= LEAST_POINTS:
            slopes.append(_theil_sen(inside))
    return statistics.median_high(slopes) if slopes else 0.0


def find_checkpoints(points: Sequence[Point]) -> CheckpointBursts | None:
    """Checkpoints, recognized as bursts of similar size at regular times; None where the usage grows in another way."""
    bursts = _bursts(points)
    if len(bursts) > LEAST_BURSTS and bursts[0].began <= points[0].at:
        bursts = bursts[1:]  # its start was not seen
    if len(bursts) < LEAST_BURSTS:
        return None
    written = statistics.median(one.size for one in bursts)
    alike = [burst for burst in bursts if abs(burst.size - written) <= ALIKE * written]
    if len(alike) < LEAST_BURSTS or len(alike) < 0.7 * len(bursts):
        return None
    pairs = list(itertools.pairwise(alike))
    period = statistics.median(after.ended - before.ended for before, after in pairs)
    if any(abs(after.ended - before.ended - period) > 0.5 * period for before, after in pairs):
        return None
    stays = [after.top - before.top for before, after in pairs]
    return CheckpointBursts(written, _kept(stays, written), period, alike[-1].ended)


def _kept(stays: Sequence[float], written: float) -> float:
    """What stays of a checkpoint on average; 0 for so little that it may be chance (logs grow, too), unless it grows each time."""
    kept = statistics.median(stays)
    chance = len(stays) < LEAST_RISES or min(stays) <= 0
    return 0.0 if kept <= ROTATES * written and chance else max(0.0, kept)


class _Burst(NamedTuple):
    began: float
    ended: float
    size: float
    top: float


def _bursts(points: Sequence[Point]) -> list[_Burst]:
    """Runs of growth that is much faster than the mean, joined where no pause is between them."""
    steps = list(itertools.pairwise(points))
    ups = [max(0.0, after.used - before.used) for before, after in steps]
    floor = 2.0 * sum(ups) / len(ups)  # mean growth of a step: even growth has no burst
    found: list[_Burst] = []
    current: tuple[Point, Point] | None = None
    for (before, after), up in zip(steps, ups, strict=True):
        if up > 0 and up >= floor:
            current = (current[0] if current else before, after)
        elif current is not None:
            found.append(_burst(*current))
            current = None
    return found  # one that has not ended yet does not count


def _burst(first: Point, last: Point) -> _Burst:
    return _Burst(first.at, last.at, last.used - first.used, last.used)


def _first_that_fails(bursts: CheckpointBursts, space: float) -> int | None:
    """The number of the first checkpoint that does not fit (1: the next); None where old ones are removed and all fit.

    `space`: bytes free before the next one began. Each needs space for all that it writes, though less of it stays.
    """
    spare = space - bursts.written
    if spare < 0:
        return 1
    return None if bursts.kept <= 0 else int(spare // bursts.kept) + 2


def _near(left: float | None, span: float) -> bool:
    return left is not None and left <= AHEAD * span


def _theil_sen(points: Sequence[Point]) -> float:
    """The median of the slopes of all pairs that lie far apart: steps and outliers do not move it."""
    stride = max(1, len(points) // MOST_POINTS)
    some = [*points[::stride], points[-1]]
    apart = (points[-1].at - points[0].at) / 3
    slopes = [
        (after.used - before.used) / (after.at - before.at)
        for number, before in enumerate(some)
        for after in some[number + 1 :]
        if after.at - before.at >= apart
    ]
    return statistics.median(slopes) if slopes else 0.0
