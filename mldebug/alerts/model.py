"""The data of events: an alert that a subject raises, the event that it becomes, and the message that a channel gets.

An event's key never changes, whatever is found out later: labels that are part of an alert's identity stay, and what is
refined (verdict, culprit, sentence) travels beside them.
"""

from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from mldebug.alerts.rank_map import RankMap
from mldebug.core.model import Culprit, MeasuredData
from mldebug.jobs.owners import Owner


class Severity(StrEnum):
    """How serious an alert is, in the words that are usual with Alertmanager."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class EventState(StrEnum):
    """Whether an event is pending, firing or resolved."""

    PENDING = "pending"  # true, and not yet for long enough
    FIRING = "firing"
    RESOLVED = "resolved"


class Alert(MeasuredData, frozen=True, kw_only=True):
    """Something that is wrong now.

    It is raised again at every turn of the agent's main loop, for as long as it lasts.
    """

    key: str  # stable, unique on this node: "health/gpu_ecc/GPU-1"
    kind: str  # short word for routes: stall, abnormal_end, slowdown, gpu_ecc
    severity: Severity
    sentence: str  # one, without a full stop
    labels: dict[str, str] = {}  # that never change while it lasts
    next_steps: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()
    blamed: tuple[Culprit, ...] = ()  # the same in parts, for actions
    map: RankMap | None = None  # what the ranks of an incident do
    verdict: str = ""
    confidence: str = ""  # high, medium, low; "": nobody has judged
    report: str = ""  # id of the report, where there is one
    uid: int = -1  # whose job it concerns; -1: the node's
    owner: Owner | None = None  # the same with the container, where a run is concerned
    since: float | None = None  # unix seconds, where whoever raised it knows
    # seconds for which it fires at least: what begins and ends in one moment would reach nobody
    stands: float = 0.0

    @property
    def share(self) -> Owner:
        """Whose share of the events and of the actions of an hour it uses up."""
        return self.owner or (self.uid, "")


class AlertEvent(MeasuredData, frozen=True, kw_only=True):
    """An alert from its beginning to its end. Times are unix seconds."""

    alert: Alert = msgspec.field(name="alarm")
    state: EventState
    started: float
    fired: float | None = None  # while it is pending: when it was first seen
    ended: float | None = None  # while it fires: over, and it only stands for its time
    outcome: str = ""  # how it ended: recovered, ended, cleared
    acknowledged: dict[str, str] = msgspec.field(
        default={}, name="told"
    )  # channel -> the last state that it has acknowledged

    @property
    def key(self) -> str:
        """The key of the event's alert, which stays the same while the alert lasts."""
        return self.alert.key


class EventMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message about one event, as every channel sends it.

    If a channel gets a message with the same `id` again, an earlier try may already have delivered
    it.
    """

    id: str  # the event's key, its start and its state
    key: str
    state: Literal["firing", "resolved"]
    kind: str
    severity: str
    node: str
    sentence: str
    subject: str  # one line without control characters, at most 200 characters
    verdict: str = ""
    culprits: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    report: str = ""
    link: str = ""  # an address, or the command that shows the report
    labels: dict[str, str] = {}
    map: RankMap | None = None  # what the ranks of an incident do; None: it is about no ranks
    started: str  # RFC 3339, UTC
    ended: str = ""
    outcome: str = ""
    version: str = ""


class Channel(Protocol):
    """A way to send messages about events to people or programs: what `create` of a file in `channels/` returns. `send` may block, within
    time limits of its own.
    """

    repeat: float  # seconds after which a firing event is sent again; 0: never
    # a channel may have `every` (seconds), too: then it gets no events, and one message now and then, that the agent lives

    def send(self, message: EventMessage) -> None:
        """Deliver the message. Raises MessageRefusedError where another try cannot help, OSError where it may."""


class MessageRefusedError(Exception):
    """The receiver understood the message and does not want it: sending it again cannot help."""
