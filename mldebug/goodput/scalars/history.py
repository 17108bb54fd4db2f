"""The history of a run's training figures: bounded, fine at its end, coarser the longer ago.

A table with one row for each `EVERY` seconds in which something new came, and one column for each figure. When the table is full, the rows
before the newest `RECENT` are thinned until they are evenly apart, so that a run of a month keeps its beginning in as many rows as a run of an hour. What is not
finite stands as None, as JSON has no word for it. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import isfinite

import msgspec

from mldebug.goodput.scalars.model import ACTIVITY, SERIES, STEP_SECONDS, TrainingEvent

EVERY = 10.0  # seconds between two rows
MOST_ROWS = 480
RECENT = 120  # rows that are not thinned: 20 minutes
ENDED_ROWS = 120  # of a run that is over
KEPT = frozenset((*SERIES, *ACTIVITY))  # names of columns
Column = list[float | None]


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """How loss, speed and other figures of one run went, as the HTTP API gives it. `columns`: by name of the figure, one value for each
    of `times` and `steps`; None: no value then. `activity`: what was seen of it, also while it made no step: one value for each of
    `activity_times`.
    """

    run: str
    name: str = ""
    user: str = ""
    uid: int = -1
    script: str = ""
    started_at: float  # unix: when the agent met the run
    times: tuple[float, ...] = ()  # unix
    steps: tuple[int | None, ...] = ()
    columns: dict[str, tuple[float | None, ...]] = {}
    activity_times: tuple[float, ...] = ()  # unix
    activity: dict[str, tuple[float | None, ...]] = {}
    events: tuple[TrainingEvent, ...] = ()
    counts: dict[str, int] = {}  # by kind of event: how many since the agent met the run

    def series(self, name: str) -> Iterator[tuple[float, float | None]]:
        """The times and values of one figure, in which None is a gap; nothing for a figure that never came.

        Seconds per step that no log and no hook has told are how fast the steps came.
        """
        if name in ACTIVITY:
            return zip(self.activity_times, self.activity.get(name, ()), strict=False)
        if name == STEP_SECONDS and name not in self.columns:
            return self._paces()
        return zip(self.times, self.columns.get(name, ()), strict=False)

    def _paces(self) -> Iterator[tuple[float, float | None]]:
        """Seconds per step from each row to the next one, None where the steps began anew. Without the last row, whose step is that of a
        moment, while those before have the last step of all their `EVERY` seconds.
        """
        rows = [
            (at, step) for at, step in zip(self.times, self.steps, strict=False) if step is not None
        ]
        for (before, first), (at, step) in pairwise(rows[:-1]):
            if step != first:
                yield at, (at - before) / (step - first) if step > first else None

    @property
    def span(self) -> tuple[float, float] | None:
        """From when until when it has values (unix seconds); None where it has none."""
        ends = [one for times in (self.times, self.activity_times) if times for one in (times[0], times[-1])]  # fmt: skip
        return (min(ends), max(ends)) if ends else None


class HistorySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of one run: to ask for its history with `run`. Times are unix seconds."""

    run: str
    name: str
    user: str
    script: str
    started_at: float
    last_at: float | None
    series: tuple[str, ...]
    events: tuple[TrainingEvent, ...]


class HistoryList(msgspec.Struct, frozen=True, kw_only=True):
    """All histories that a user may see."""

    runs: tuple[HistorySummary, ...]


def history_list(histories: Iterable[RunHistory]) -> HistoryList:
    """For each run: which figures are kept, since when, and the events found in them."""
    return HistoryList(runs=tuple(map(_summary, histories)))


def history_of(histories: Iterable[RunHistory], run: str) -> RunHistory | None:
    """The history of the run with this id; None where there is none."""
    return next((one for one in histories if one.run == run), None)


def _summary(one: RunHistory) -> HistorySummary:
    return HistorySummary(
        run=one.run,
        name=one.name,
        user=one.user,
        script=one.script,
        started_at=one.started_at,
        last_at=one.span[1] if one.span else None,
        series=tuple(
            name for name in (*SERIES, *ACTIVITY) if name in {**one.columns, **one.activity}
        ),
        events=one.events,
    )


class HistoryTable(msgspec.Struct, kw_only=True):
    """The rows of one run, to which values are added."""

    times: list[float] = []
    steps: list[int | None] = []
    columns: dict[str, Column] = {}

    def add(self, at: float, step: int | None, values: Mapping[str, float]) -> bool:
        """Add a row, unless the last one is younger than `EVERY`, which is then replaced; return whether one was added.

        Where the clock was set back, the rows before move with it: the times of a table rise, and what comes has rows of its own.
        """
        if self.times and at < self.times[-1] - EVERY:
            back = self.times[-1] - at
            self.times = [time - back for time in self.times]
        kept = {name: value for name, value in values.items() if name in KEPT}
        young = bool(self.times) and at - self.times[-1] < EVERY
        if not young:
            self.times.append(at)
            self.steps.append(step)
            for column in self.columns.values():
                column.append(None)
        else:
            self.steps[-1] = step
        for name, value in kept.items():
            column = self.columns.setdefault(name, [])
            column += [None] * (len(self.times) - len(column))
            column[-1] = value if isfinite(value) else None
        if len(self.times) > MOST_ROWS:
            self.thin(MOST_ROWS)
        return not young

    def thin(self, most: int) -> None:
        """Keep at most `most` rows: the first, the newest quarter (at most `RECENT`), and of those between as many as are evenly apart."""
        recent = min(RECENT, most // 4)
        rows = len(self.times)
        older = self.times[: rows - recent]
        if rows <= most or not older:
            return
        apart = 2 * (older[-1] - older[0]) / max(1, most - recent)
        kept, last = [0], older[0]
        for number, at in enumerate(older):
            if at >= last + apart:
                kept.append(number)
                last = at
        kept += [number for number, _ in enumerate(self.times) if number >= rows - recent]
        self.times = [self.times[row] for row in kept]
        self.steps = [self.steps[row] for row in kept]
        self.columns = {
            name: [column[row] for row in kept] for name, column in self.columns.items()
        }

    @property
    def size(self) -> int:
        """The number of values in the table, times and steps included."""
        return len(self.times) * (2 + len(self.columns))

    def problem(self) -> str:
        """Why a stored table cannot be used, as words; "" for a good one."""
        rows = len(self.times)
        if len(self.steps) != rows or any(len(one) != rows for one in self.columns.values()):
            return "its columns have different lengths"
        if rows > MOST_ROWS or not self.columns.keys() <= KEPT:
            return "it has more rows or other figures than a history has"
        if any(later < earlier for earlier, later in pairwise(self.times)):
            return "its times do not rise"
        return ""
