"""The data of actions (programs and requests that mldebug runs when an alert fires): input, result and audit log line.

Pure.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from mldebug.alerts.message import message_of
from mldebug.alerts.model import AlertEvent, EventMessage
from mldebug.core.model import Culprit, MeasuredData

Sure = Literal["high", "medium", "low"]
SURE: tuple[Sure, ...] = ("low", "medium", "high")
MOST_BLAMED = 8


class ActionOutcome(StrEnum):
    """How one configured action ended."""

    RAN = "ran"
    DRY_RUN = "dry_run"  # it would have run
    REFUSED = "refused"  # it may not, or does not fit
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # the agent ended while it ran: whether it was done is not known


class ActionFacts(EventMessage, frozen=True, kw_only=True):
    """The input of an action: the message that the event fires, the verdict's confidence, and the ranks, nodes and GPUs that it blames."""

    confidence: str = ""
    blamed: tuple[Culprit, ...] = ()


class ActionDecision(MeasuredData, frozen=True, kw_only=True, omit_defaults=False):
    """One line of the actions' audit log: which action, for which event, and how it ended."""

    at: str  # RFC 3339, UTC
    action: str  # its name in the config
    kind: str
    event: str  # key
    event_id: str  # of the message that channels get
    event_kind: str
    outcome: ActionOutcome
    why: str = ""  # what was done, or why it was not
    run: str = ""
    code: int | None = None  # exit code, of what has one
    seconds: float = 0.0


class UnfitError(Exception):
    """The action cannot be done for this event, and nothing was done. The error's text says why."""


def facts_of(event: AlertEvent, node: str, link: str, version: str) -> ActionFacts:
    """The input for actions about a firing event: its message, confidence and culprits (at most `MOST_BLAMED`)."""
    message, alert = message_of(event, node, link, version), event.alert
    return ActionFacts(
        **{name: getattr(message, name) for name in message.__struct_fields__},
        confidence=alert.confidence,
        blamed=alert.blamed[:MOST_BLAMED],
    )


def environment(facts: ActionFacts) -> dict[str, str]:
    """Environment variables (`MLDEBUG_…`) that tell a program about the event: cleaned texts of one line each."""
    return {f"MLDEBUG_{name}": value for name, value in _named(facts)}


def sure_enough(facts: ActionFacts, wanted: Sure) -> None:
    """Raise UnfitError where the verdict's confidence is lower than `wanted`, or where it has none."""
    known = SURE.index(facts.confidence) if facts.confidence in SURE else -1
    if known < SURE.index(wanted):
        confidence = facts.confidence or "unknown"
        raise UnfitError(f"the confidence is {confidence}, and it does so from {wanted} on only")


def _named(facts: ActionFacts) -> Iterator[tuple[str, str]]:
    for name in ("id", "key", "kind", "severity", "started"):
        yield f"EVENT_{name.upper()}", getattr(facts, name)
    for name in ("node", "sentence", "verdict", "confidence", "report", "link", "version"):
        yield name.upper(), getattr(facts, name)
    yield "CULPRITS", "; ".join(facts.culprits)
    yield "NEXT_STEPS", "; ".join(facts.next_steps)
    yield "RUN", facts.labels.get("run", "")
    yield "JOB", facts.labels.get("job", "")
