"""Events and channels as `status`, the API and the metrics see them."""

from mldebug.core.model import MeasuredData


class EventView(MeasuredData, frozen=True, kw_only=True):
    """One event as status and pages show it, while it fires or after it has ended. Times are unix seconds."""

    key: str
    kind: str
    severity: str
    state: str
    sentence: str
    started: float
    ended: float | None = None
    outcome: str = ""
    report: str = ""
    uid: int = -1  # whose job it concerns: people see their own; -1: the node's
    labels: dict[str, str] = {}


class ChannelState(MeasuredData, frozen=True, kw_only=True):
    """The state and counters of one channel since the agent's start."""

    name: str
    kind: str
    waiting: int = 0  # events of whose state it has not heard
    sent: int = 0
    failed: int = 0  # tries
    refused: int = 0  # messages that are not tried again
    last_success: float | None = None  # unix; None: not yet
    trouble: str = ""  # why the last try failed


class ActionState(MeasuredData, frozen=True, kw_only=True):
    """The state and counters of one action since the agent's start."""

    name: str
    kind: str
    counts: dict[str, int] = {}  # outcome -> how often
    last_success: float | None = None  # unix; None: not yet
    last: str = ""  # outcome of the newest decision; "": there was none
    at: float | None = None  # unix, of it
    event: str = ""  # key, of it
    why: str = ""  # what was done, or why not


class EventsView(MeasuredData, frozen=True, kw_only=True):
    """All events, channels and actions, as status and pages show them."""

    events: tuple[
        EventView, ...
    ] = ()  # the newest, those that fire and those that were resolved lately
    counts: dict[str, int] = {}  # "kind/severity" -> how many fire
    dropped: int = 0  # events for which there was no room
    channels: tuple[ChannelState, ...] = ()
    actions: tuple[ActionState, ...] = ()
    actions_trouble: str = ""  # why nothing is done at present, or not written down


def for_user(view: EventsView, uid: int | None) -> EventsView:
    """What a user may see: events of the node and of the user's own jobs (None: of the node alone), but no channels and no actions."""
    visible = tuple(event for event in view.events if event.uid in (-1, uid))
    return EventsView(events=visible, dropped=view.dropped)
