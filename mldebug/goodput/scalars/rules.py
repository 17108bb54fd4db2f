"""All rules over the training figures of one run: points in, events out. Pure.

What the rules remember is one value that can be stored, so that an agent that was restarted judges as if it had gone on.
"""

from collections.abc import Iterable

import msgspec

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
