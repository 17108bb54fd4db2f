"""Alerts about the training figures of a run: what lasts, and for ten minutes what happened in a moment. Pure."""

from collections.abc import Iterable, Iterator

from mldebug.alerts.model import Alert, Severity
from mldebug.alerts.node_events import SubjectAlerts
from mldebug.core.redact import safe_line
from mldebug.goodput.scalars.history import RunHistory
from mldebug.goodput.scalars.model import EventKind, TrainingEvent

TRAINING = "training/"
SHOWN = 600.0  # seconds for which what happened in a moment is an alert
SEVERITY = {EventKind.NOT_FINITE: Severity.WARNING, EventKind.DIVERGED: Severity.WARNING}
"""The others are `info`: they are worth knowing, and wake nobody."""
NEXT = {
    EventKind.NOT_FINITE: "go back to a checkpoint from before that step; those since then are worth nothing",
    EventKind.DIVERGED: "go back to a checkpoint from before it, with a lower learning rate or without these batches",
    EventKind.DATA_REPEATED: "have the state of the data loader stored in the checkpoint, and restored from it",
}


def training_alerts(
    histories: Iterable[RunHistory], living: Iterable[str], now: float
) -> Iterator[SubjectAlerts]:
    """The alerts of all runs that live. `living`: ids of these. `now`: unix seconds."""
    alive = set(living)
    alerts = tuple(
        _alert(history, event)
        for history in histories
        if history.run in alive
        for event in history.events
        if event.ended is None or _is_moment(event, now)
    )
    yield SubjectAlerts(alerts=alerts, watched=(TRAINING,))


def _is_moment(event: TrainingEvent, now: float) -> bool:
    return event.ended == event.at and 0 <= now - event.at < SHOWN


def _alert(history: RunHistory, event: TrainingEvent) -> Alert:
    name = safe_line(history.name, 100)
    step = (
        f" (step {event.step})" if event.step is not None and "step" not in event.sentence else ""
    )
    follow = NEXT.get(event.kind, "")
    return Alert(
        key=f"{TRAINING}{safe_line(history.run, 80)}/{event.kind}/{event.step}#{event.at:.0f}",
        kind=event.kind,
        severity=SEVERITY.get(event.kind, Severity.INFO),
        sentence=safe_line(f"{name}: {event.sentence}{step}", 400),
        labels={"run": safe_line(history.run, 80), "job": name},
        next_steps=(follow,) if follow else (),
        uid=history.uid,
        since=event.at,
    )
