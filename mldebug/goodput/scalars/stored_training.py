"""All rules over the training figures of one run (points in, events out), and how the agent stores the figures. Pure.

What the rules remember is one value that can be stored, so that an agent that was restarted judges as if it had gone on.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from mldebug.goodput.scalars.history import ENDED_ROWS, HistoryTable
from mldebug.goodput.scalars.loss_rules import Found, NotFiniteRule, SpikeRule
from mldebug.goodput.scalars.model import EventKind, TrainingEvent, TrainingPoint
from mldebug.goodput.scalars.resume_rules import ResumeRule
from mldebug.goodput.scalars.throughput_rule import ThroughputRule

LASTING = (EventKind.NOT_FINITE, EventKind.SPIKE, EventKind.DIVERGED, EventKind.THROUGHPUT)
"""Kinds that last until a rule says that they are over; the others happen in a moment."""
MOST_EVENTS = 32


class TrainingRules(msgspec.Struct, kw_only=True):
    """What all rules remember of one run, and the events that they found: the newest `MOST_EVENTS`."""

    not_finite: NotFiniteRule = msgspec.field(default_factory=NotFiniteRule)
    spike: SpikeRule = msgspec.field(default_factory=SpikeRule)
    throughput: ThroughputRule = msgspec.field(default_factory=ThroughputRule)
    resume: ResumeRule = msgspec.field(default_factory=ResumeRule)
    events: list[TrainingEvent] = []
    counts: dict[str, int] = {}

    def add(self, points: Iterable[TrainingPoint]) -> bool:
        """Judge points in the order of the log; return whether an event began or ended."""
        news = False
        for point in points:
            for rule in (self.not_finite, self.spike, self.throughput, self.resume):
                for found in rule.add(point):
                    self._take(found, point)
                    news = True
        return news

    def follow(self, before: "TrainingRules") -> None:
        """Take over from `before`, the rules of the run of the same job before this one, at which step and loss that one stood."""
        self.resume = before.resume.for_next_run()

    def end(self, at: float) -> None:
        """Note that the run is over: events that still last end with it."""
        self.events = [
            one if one.ended is not None else msgspec.structs.replace(one, ended=at)
            for one in self.events
        ]

    def go_on(self) -> None:
        """The run goes on after it was taken for over: what had lasted until then, and no rule says that it is over, lasts."""
        for kind in (kind for kind in LASTING if self._is_open(kind)):
            newest = max((n for n, one in enumerate(self.events) if one.kind is kind), default=None)
            if newest is not None:
                self.events[newest] = msgspec.structs.replace(self.events[newest], ended=None)

    def _is_open(self, kind: EventKind) -> bool:
        return {
            EventKind.NOT_FINITE: self.not_finite.is_open,
            EventKind.SPIKE: self.spike.is_open,
            EventKind.DIVERGED: self.spike.diverged_above is not None,
            EventKind.THROUGHPUT: self.throughput.is_open,
        }[kind]

    def _take(self, found: Found, point: TrainingPoint) -> None:
        if found.over:
            self.events = [
                msgspec.structs.replace(one, ended=point.at)
                if one.kind is found.kind and one.ended is None
                else one
                for one in self.events
            ]
            return
        step = found.step if found.step is not None else point.step
        event = TrainingEvent(
            kind=found.kind,
            at=point.at,
            step=step,
            sentence=found.words,
            ended=None if found.kind in LASTING else point.at,
        )
        self.events = [*self.events, event][-MOST_EVENTS:]
        self.counts[found.kind] = self.counts.get(found.kind, 0) + 1


VERSION = 1
FUTURE = 300.0  # seconds by which a stored time may be ahead of the clock


class StoredTraining(msgspec.Struct, kw_only=True):
    """The history of one run with what its rules remember, as it is stored. Times are unix seconds."""

    version: int = VERSION
    run: str
    name: str
    user: str
    uid: int
    script: str
    started_at: float
    looked_at: float
    is_over: bool = False
    table: HistoryTable = msgspec.field(default_factory=HistoryTable)
    activity: HistoryTable = msgspec.field(default_factory=HistoryTable)
    rules: TrainingRules = msgspec.field(default_factory=TrainingRules)

    @property
    def job(self) -> tuple[object, ...]:
        """What all runs of one job share: user id, user, name and script."""
        return self.uid, self.user, self.name, self.script

    def look(self, at: float) -> bool:
        """The run was there at this time (unix seconds); return whether it had been taken for over."""
        self.looked_at, self.started_at = at, min(self.started_at, at)
        was_over, self.is_over = self.is_over, False
        if was_over:
            self.rules.go_on()
        return was_over

    def end(self) -> None:
        """The run is over: what lasted ended with its last look, and fewer rows are kept."""
        self.is_over = True
        self.rules.end(self.looked_at)
        self.thin(ENDED_ROWS)

    def thin(self, rows: int) -> None:
        """Keep at most so many rows of either table."""
        self.table.thin(rows)
        self.activity.thin(rows)

    @property
    def size(self) -> int:
        """The number of values in its tables."""
        return self.table.size + self.activity.size


class EndedTraining(NamedTuple):
    """The history of a run that is over, held as the bytes that are stored: what its rules remember is needed only where the run, or
    its job with another run, goes on.
    """

    run: str
    uid: int
    job: tuple[object, ...]
    looked_at: float  # unix
    size: int  # values in its tables
    data: bytes

    def woken(self) -> StoredTraining:
        """Decode the history, so that its run, or another run of its job, can go on with it."""
        return msgspec.json.decode(self.data, type=StoredTraining)


def put_down(one: StoredTraining) -> EndedTraining:
    """The form in which the history of a run that is over is kept in memory: as JSON, with its key figures beside it."""
    data = msgspec.json.encode(one)
    return EndedTraining(one.run, one.uid, one.job, one.looked_at, one.size, data)


def read_stored(data: bytes, now: float) -> tuple[StoredTraining | None, str]:
    """A stored history, moved to where the clock is now (unix seconds), or None and why it cannot be used."""
    try:
        found = msgspec.json.decode(data, type=StoredTraining)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"it cannot be read: {error}"
    if found.version != VERSION:
        return None, f"it is of version {found.version}, and this agent reads version {VERSION}"
    problem = found.table.problem() or found.activity.problem()
    if problem:
        return None, problem
    return _moved_back(found, now), ""


def _moved_back(one: StoredTraining, now: float) -> StoredTraining:
    """A history that is from the future, because the clock was set back since it was stored, so that it ends now; another as it is."""
    ahead = (
        max(one.looked_at, one.started_at, *one.table.times[-1:], *one.activity.times[-1:]) - now
    )
    if ahead <= FUTURE:
        return one
    events = [
        msgspec.structs.replace(event, at=event.at - ahead, ended=event.ended and event.ended - ahead)
        for event in one.rules.events
    ]  # fmt: skip
    return msgspec.structs.replace(
        one,
        looked_at=min(now, one.looked_at - ahead),
        started_at=one.started_at - ahead,
        table=msgspec.structs.replace(one.table, times=[at - ahead for at in one.table.times]),
        activity=msgspec.structs.replace(
            one.activity, times=[at - ahead for at in one.activity.times]
        ),
        rules=msgspec.structs.replace(one.rules, events=events),
    )
