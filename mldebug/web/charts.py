"""The history of a run as small charts, drawn by the server: lines for SVG, with their words. Pure."""

from datetime import UTC, datetime
from itertools import groupby

import msgspec

from mldebug.core.redact import clean
from mldebug.core.units import duration_words
from mldebug.goodput.scalars.alerts import SEVERITY
from mldebug.goodput.scalars.history import RunHistory
from mldebug.goodput.scalars.model import (
    ACTIVITY,
    GPU_BUSY,
    LOSS,
    SERIES,
    SILENCE,
    STEP_SECONDS,
    WAITING,
)

WIDTH, HEIGHT = 120.0, 32.0  # of the drawing's coordinates
POINTS, FEW = 240, 60  # of a chart, of a sparkline
EDGE = 0.02  # of the values at either end may stand outside of the drawing's height: one spike would flatten the rest
MOST_EVENTS = 8
LABELS = {
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    STEP_SECONDS: "seconds per step",
    "tokens_per_second": "tokens/s",
    "tokens_per_second_per_gpu": "tokens/s per GPU",
    "samples_per_second": "samples/s",
    "tflops": "TFLOP/s",
    "mfu": "MFU",
    "loss_scale": "loss scale",
    "skipped_iterations": "skipped iterations",
    "nan_iterations": "NaN iterations",
    "batch_size": "batch size",
    SILENCE: "seconds without progress",
    GPU_BUSY: "GPUs busy, %",
    WAITING: "ranks that wait, %",
}
SPARKLINES = ("tokens_per_second", "samples_per_second", "tflops", STEP_SECONDS)
"""What a card shows beside the loss: the first that a run has."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a run, such as its loss, over time. `lines`: points for SVG polylines, one for each stretch without a gap; `marks`: x of events."""

    label: str
    last: str
    low: str
    high: str
    lines: tuple[str, ...]
    marks: tuple[float, ...] = ()
    words: str


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of text in the list below a run's charts: when its loss or speed went wrong, and how. `when`: RFC 3339; `bad`: shown as an
    error.
    """

    when: str
    text: str
    bad: bool


def charts(history: RunHistory) -> tuple[Chart, ...]:
    """A chart of each figure that has values."""
    found = (_chart(history, name, POINTS) for name in (*SERIES, *ACTIVITY))
    return tuple(one for one in found if one is not None)


def sparklines(history: RunHistory) -> tuple[Chart, ...]:
    """The loss, and what shows the speed best: if the run tells no speed, how fast its steps came."""
    speed = next((name for name in SPARKLINES if name in history.columns), STEP_SECONDS)
    found = (_chart(history, name, FEW) for name in (LOSS, speed))
    return tuple(one for one in found if one is not None)


def span_words(history: RunHistory) -> str:
    """How long the charts reach back, in words; "" for one moment."""
    begin, end = history.span or (0.0, 0.0)
    seconds = end - begin
    return f"of {duration_words(round(seconds))}" if seconds >= 1 else ""


def event_lines(history: RunHistory) -> tuple[EventLine, ...]:
    """The newest events of a run, the newest first."""
    return tuple(
        EventLine(
            when=datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            text=clean(one.sentence, 400) + (" (over)" if one.ended is not None and one.ended > one.at else ""),
            bad=one.ended is None and one.kind in SEVERITY,
        )
        for one in history.events[: -MOST_EVENTS - 1 : -1]
    )  # fmt: skip


def _chart(history: RunHistory, name: str, most: int) -> Chart | None:
    points = list(history.series(name))
    values = [value for _, value in points if value is not None]
    if len(values) < 2 or history.span is None:
        return None
    points = _fewer(points, most)
    begin, end = history.span[0], max(history.span[1], history.span[0] + 1.0)
    low, high = _range(values, name)
    lines = []
    for is_gap, stretch in groupby(points, lambda point: point[1] is None):
        if not is_gap:
            drawn = [(_x(at, begin, end), _y(value or 0.0, low, high)) for at, value in stretch]
            lines.append(" ".join(f"{x:.1f},{y:.1f}" for x, y in (drawn if len(drawn) > 1 else drawn * 2)))  # fmt: skip
    label, last = LABELS.get(name, name), points[-1][1]
    marks = [_x(one.at, begin, end) for one in history.events] if name == LOSS else []
    shown = _figure(last) if last is not None else "not a number"
    span = duration_words(round(end - begin))
    return Chart(
        label=label,
        last=shown,
        low=_figure(min(values)),
        high=_figure(max(values)),
        lines=tuple(lines),
        marks=tuple(round(mark, 1) for mark in marks if 0 <= mark <= WIDTH),
        words=f"{label} over {span}: from {_figure(min(values))} to {_figure(max(values))}, last {shown}",
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _fewer(points: list[tuple[float, float | None]], most: int) -> list[tuple[float, float | None]]:
    """At most so many of the points, evenly, the last one among them."""
    stride = -(-len(points) // most)
    return points[(len(points) - 1) % stride :: stride]


def _range(values: list[float], name: str) -> tuple[float, float]:
    """What the height of the drawing shows: nearly all values, and never nothing; of a share all that it may be, of silence the longest."""
    if name in (GPU_BUSY, WAITING):
        return -5.0, 105.0
    if name == SILENCE:
        return -0.05 * max(values), 1.05 * max(values) or 1.0
    ordered = sorted(values)
    cut = int(EDGE * len(ordered))
    low, high = ordered[cut], ordered[-1 - cut]
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _x(at: float, begin: float, end: float) -> float:
    return WIDTH * (at - begin) / (end - begin)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT * (1 - (min(max(value, low), high) - low) / (high - low))
