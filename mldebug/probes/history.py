"""Whether a series of probe runs has become slower or faster, by its own median and median absolute deviation (MAD). Pure.

One bad run is nothing: the last `LAST` runs must all lie beyond the band around the median of the runs before them. On each
side the band is the widest of 5 % of the median, 4 standard deviations by the MAD, and 4 by the tail on that side, since
figures that now and then fall low by nature have a small MAD. A shifted run joins the runs before it only when `ACCEPTED`
of them have come in a row: then theirs is the usual level.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.core.redact import safe_line
from mldebug.probes.collectives import CollectiveResult

LAST = 3  # runs that must agree
LEAST = 8  # runs before them
MOST = 60  # runs before them that count: older ones are forgotten
SHARE = 0.05  # of the median: less is no finding, however steady the runs were
DEVIATIONS = 4.0
NORMAL = 1.4826  # standard deviations per MAD of a normal distribution
TAIL = 0.1  # of the runs before lie further out; the outermost one is taken where they are few
FEWEST_OF_TAIL = 20
TAIL_NORMAL = 1 / 1.2816  # standard deviations per distance of that from the median
RECENT = 30  # runs whose speeds are shown
ACCEPTED = 30  # shifted runs in a row, after which they are the usual ones


class SeriesTrend(StrEnum):
    """How the last runs of a series compare with the runs before."""

    FEW = "few_runs"  # too few to say
    STEADY = "steady"
    SHIFTED = "shifted"  # slower in all of the last runs
    IMPROVED = "improved"  # faster in all of the last runs


CHANGED = (SeriesTrend.SHIFTED, SeriesTrend.IMPROVED)


class ProbeSeries(MeasuredData, frozen=True, kw_only=True, omit_defaults=False):
    """A series of measurements: all that must be equal for two runs to be compared."""

    op: str
    bytes: int
    dtype: str
    ranks: int  # GPUs, or processes on CPUs
    device: str  # model of the GPU, or "cpu"
    nodes: str  # folded names: "n[1-4]"
    torch: str
    nccl: str  # "" with gloo
    nccl_algo: str  # NCCL_ALGO; "" where NCCL chooses
    variables: str  # others that change what is measured: "NCCL_P2P_DISABLE=1"

    @property
    def settings(self) -> str:
        """The NCCL variables of the series, such as NCCL_ALGO, in words."""
        algo = f"NCCL_ALGO={self.nccl_algo}" if self.nccl_algo else ""
        return " ".join(filter(None, (algo, self.variables)))


class ProbeRun(MeasuredData, frozen=True, kw_only=True, omit_defaults=False):
    """One measurement of a series, as it is stored.

    `at`: unix time; `seconds`: the median time. A barrier has bandwidth 0, as it has no payload.
    """

    at: float
    seconds: float
    busbw: float  # bytes per second

    @property
    def speed(self) -> float:
        """The speed of the run, more is better: bytes per second, or operations per second for operations without payload."""
        if self.busbw > 0:
            return self.busbw
        return 1 / self.seconds if self.seconds > 0 else 0.0


class JudgedSeries(MeasuredData, frozen=True, kw_only=True, omit_defaults=False):
    """A series with its verdict. `median` and `mad` are of the runs before the last ones, in bytes or operations per second."""

    series: ProbeSeries
    standing: SeriesTrend
    runs: int
    median: float | None  # None: too few runs
    mad: float | None
    last: tuple[ProbeRun, ...]  # the oldest first
    change: float | None = None  # of the last ones' median against it: -0.1 is 10 % slower
    low: float | None = None  # the band around the median, outside of which a run is odd
    high: float | None = None
    speeds: tuple[float, ...] = ()  # of the last `RECENT` runs, four digits, the oldest first


class Usual(NamedTuple):
    """The usual speed of earlier runs: median, median absolute deviation, and the range `low` to `high`.

    Speeds outside of it are unusual.
    """

    median: float
    mad: float
    low: float
    high: float

    def standing(self, last: Sequence[float]) -> SeriesTrend:
        """How the last speeds compare with the usual ones."""
        if all(one < self.low for one in last):
            return SeriesTrend.SHIFTED
        return SeriesTrend.IMPROVED if all(one > self.high for one in last) else SeriesTrend.STEADY


def usual_of(speeds: Sequence[float]) -> Usual:
    """The usual range of speeds, from at least `LEAST` of them, in the unit of `speeds`."""
    ordered = sorted(speeds)
    middle = median(ordered)
    mad = median(abs(one - middle) for one in ordered)
    place = int(TAIL * len(ordered)) if len(ordered) >= FEWEST_OF_TAIL else 0
    least = max(SHARE * middle, DEVIATIONS * NORMAL * mad)
    below, above = middle - ordered[place], ordered[-1 - place] - middle
    return Usual(
        median=middle,
        mad=mad,
        low=middle - max(least, DEVIATIONS * TAIL_NORMAL * below),
        high=middle + max(least, DEVIATIONS * TAIL_NORMAL * above),
    )


class TrendDetector:
    """Follows a series run by run, and detects lasting changes of its speed."""

    def __init__(self) -> None:
        self.standing = SeriesTrend.FEW
        self.usual: Usual | None = None
        self._before: deque[float] = deque(maxlen=MOST)
        self._odd: deque[float] = deque(maxlen=ACCEPTED)  # since a shift: no part of the usual ones
        self._last: deque[float] = deque(maxlen=LAST)

    def add(self, speed: float) -> None:
        """Add the speed that the next run of the probe measured, in the unit of the series, and judge the trend anew."""
        if len(self._last) == LAST:
            self._leave(self._last[0])
        self._last.append(speed)
        if len(self._before) >= LEAST:
            self.usual = usual_of(self._before)
            self.standing = self.usual.standing(self._last)

    def _leave(self, speed: float) -> None:
        """Move the speed of a run that is no longer among the last ones to those that it is compared with."""
        if self.standing not in CHANGED:
            self._odd.clear()
            self._before.append(speed)
            return
        self._odd.append(speed)
        if len(self._odd) == ACCEPTED:
            self._before = deque(self._odd, maxlen=MOST)
            self._odd.clear()


def judge(series: ProbeSeries, runs: Sequence[ProbeRun]) -> JudgedSeries:
    """The series with its verdict. `runs`: at least one, the oldest first."""
    last = tuple(runs[-LAST:])
    detector = TrendDetector()
    for run in runs:
        detector.add(run.speed)
    usual = detector.usual
    now = median(one.speed for one in last)
    return JudgedSeries(
        series=series,
        standing=detector.standing,
        runs=len(runs),
        median=usual.median if usual else None,
        mad=usual.mad if usual else None,
        last=last,
        change=now / usual.median - 1 if usual and usual.median else None,
        low=usual.low if usual else None,
        high=usual.high if usual else None,
        speeds=tuple(float(f"{one.speed:.4g}") for one in runs[-RECENT:]),
    )


def judge_all(
    measured: Iterable[tuple[ProbeSeries, Sequence[ProbeRun]]],
) -> tuple[JudgedSeries, ...]:
    """All series with their verdicts: shifted ones first, then by time of the last run."""
    judged = [judge(series, runs) for series, runs in measured if runs]
    return tuple(
        sorted(judged, key=lambda one: (one.standing != SeriesTrend.SHIFTED, -one.last[-1].at))
    )


def current(judged: Iterable[JudgedSeries]) -> tuple[JudgedSeries, ...]:
    """The series, in their order, without those that were measured again later with another version of PyTorch or NCCL."""
    every = tuple(judged)
    newest: dict[ProbeSeries, JudgedSeries] = {}
    for one in sorted(every, key=lambda each: each.last[-1].at):
        newest[msgspec.structs.replace(one.series, torch="", nccl="")] = one
    kept = {one.series for one in newest.values()}
    return tuple(one for one in every if one.series in kept)


def sentence(one: JudgedSeries) -> str:
    """What has changed: `all_reduce of 16777216 bytes, 8 ranks on n1: 12% slower than usual in each of the last 3 runs
    (median …)`; "" where nothing has.
    """
    than, series = change_words(one), one.series
    if not than:
        return ""
    what = f"{series.op} of {series.bytes} bytes, {series.ranks} ranks on {series.nodes}"
    return safe_line(f"{what}: {than} ({figures(one)})", 400)


def change_words(one: JudgedSeries) -> str:
    """The change in words: `12% slower than usual in each of the last 3 runs`; "" without a change."""
    if one.standing not in CHANGED or one.change is None:
        return ""
    word = "slower" if one.change < 0 else "faster"
    return f"{abs(one.change):.0%} {word} than usual in each of the last {LAST} runs"


def figures(one: JudgedSeries) -> str:
    """The speeds in words: `median 9.95, MAD 0.02, last 8.8, 8.79, 8.81 GB/s`."""
    unit, scale = ("GB/s", 1e9) if one.last[-1].busbw > 0 else ("per second", 1.0)
    last = ", ".join(f"{run.speed / scale:.4g}" for run in one.last)
    if one.median is None or one.mad is None:
        return f"last {last} {unit}"
    return f"median {one.median / scale:.4g}, MAD {one.mad / scale:.2g}, last {last} {unit}"


def runs_of(
    results: Iterable[CollectiveResult], common: ProbeSeries, at: float
) -> tuple[tuple[ProbeSeries, ProbeRun], ...]:
    """A probe's results as (series, run), without those with wrong values.

    `common`: the series apart from op, bytes and ranks; `at`: unix time.
    """
    return tuple(
        (
            msgspec.structs.replace(common, op=one.op, bytes=one.bytes, ranks=one.ranks),
            ProbeRun(at=at, seconds=one.time_seconds.median, busbw=one.busbw_bytes_per_second),
        )
        for one in results
        if one.correct is not False
    )
