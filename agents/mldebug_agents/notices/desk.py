"""Events in the agent: rooms raise them, the ledger keeps them, and each channel is told of each state once.

The acknowledgement stands in the event's own row: what a channel has not acknowledged when the agent is killed is sent again
by the next one, under the same id. Belongs to the main loop's thread; channels block only in workers of their own.
"""

import logging
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mldebug import __version__
from mldebug.config import Config
from mldebug.events.book import EventBook
from mldebug.events.message import message_of
from mldebug.events.model import Alarm, Channel, Event, Message, RefusedError, State
from mldebug.events.rooms import health_alarms, healthy_keys
from mldebug.events.view import ChannelState, Events, EventView
from mldebug.health.telling import GpuName
from mldebug.incident import Incident
from mldebug.model import Judgement
from mldebug.redact import safe_line
from mldebug.rooms import load
from mldebug.settings.plugins import Plugin
from mldebug.snapshot import Snapshot
from mldebug_agents.notices.stories import INCIDENT, alarm_of, tells
from mldebug_agents.runner import Result, Worker
from mldebug_agents.state.ledger import Ledger

log = logging.getLogger("mldebug")

DEADLINE = 60.0  # seconds after which a channel counts as stuck
PAUSE_FIRST, PAUSE_MOST = 1.0, 300.0  # seconds between two tries of a channel that fails
MEMORY_WAIT = (
    30.0  # seconds for which an agent waits for its memory before it tells anybody anything
)
ROW = "event:"
SHOWN = 100  # events in a snapshot
WORKER = "channel:"


class Sent(msgspec.Struct, frozen=True):
    """One order to a channel."""

    message: Message
    event: Event
    line: Any  # the `Line` that has sent it


class Line:
    """One channel: what it is sent, and how that goes. Monotonic seconds."""

    def __init__(
        self, name: str, plugin: Plugin, inbox: "queue.SimpleQueue[Result | None]"
    ) -> None:
        self.name = name
        self.plugin = plugin
        channel: Channel = load("channels", plugin.kind).create(plugin.options)
        self.repeat = channel.repeat
        self.worker = Worker(
            WORKER + name, lambda order: channel.send(order.message), inbox, DEADLINE
        )
        self.under_way = False
        self.sent = self.failed = self.refused = 0
        self.last_success: float | None = None  # unix
        self.trouble = ""
        self.not_before = 0.0
        self._pause = PAUSE_FIRST
        self._repeated: dict[str, float] = {}  # key -> when it was sent last

    def next(self, book: EventBook, now: float) -> Event | None:
        """What to send now: news first, then what is due to be repeated."""
        if self.under_way or now < self.not_before:
            return None
        if waiting := book.untold(self.name):
            return waiting[0]
        if not self.repeat:
            return None
        due = (
            one for one in book.firing() if now - self._repeated.get(one.key, now) >= self.repeat
        )
        return next(due, None)

    def done(self, key: str, now: float) -> None:
        """It has arrived."""
        self.sent += 1
        self.trouble, self._pause, self.not_before = "", PAUSE_FIRST, 0.0
        self.last_success = time.time()
        self._repeated[key] = now

    def failure(self, error: Exception, now: float) -> None:
        """It may not have arrived; the next try waits."""
        self.failed += 1
        said = safe_line(str(error) or type(error).__name__, 200)
        if not self.trouble:
            log.error("channel %s: %s; what waits is sent later", self.name, said)
        self.trouble, self.not_before = said, now + self._pause
        self._pause = min(PAUSE_MOST, 2 * self._pause)

    def keep_only(self, keys: set[str]) -> None:
        """Forget when others were sent."""
        self._repeated = {key: at for key, at in self._repeated.items() if key in keys}


class Notices:
    """Everything about being told, for one agent."""

    def __init__(
        self,
        config: Config,
        node: str,
        ledger: Ledger,
        inbox: "queue.SimpleQueue[Result | None]",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.book = EventBook(config.events.pending)
        self._link = config.events.link
        self._node = node
        self._ledger = ledger
        self._inbox = inbox
        self._now = now
        self._restored = False
        self._alone_at = time.monotonic() + MEMORY_WAIT
        self._lines: dict[str, Line] = {}
        self._obey(config.channels)

    def reload(self, config: Config) -> None:
        """Go on with other channels; what was not acknowledged waits for those that stay, and for new ones."""
        self.book.pending, self._link = config.events.pending, config.events.link
        self._obey(config.channels)

    # --- what rooms say ----------------------------------------------------------------------------

    def incident(self, incident: Incident, judgement: Judgement, uid: int) -> None:
        """An incident was written down: it began, is known better, or is over."""
        alarm = alarm_of(incident, judgement, uid)
        if tells(incident) or self.book.get(alarm.key):
            if incident.state == "open" or self.book.get(alarm.key) is None:
                self.book.raise_(alarm, self._now(), at_once=True)
            if incident.state != "open":
                self.book.clear(alarm.key, self._now(), incident.state)

    def renamed(self, old: str) -> None:
        """An incident is told under another id, by whoever has it."""
        self.book.clear(INCIDENT + old, self._now(), "other nodes know it under another id")

    def alarm(self, alarm: Alarm) -> None:
        """A room says that something is wrong; again and again, for as long as it is."""
        self.book.raise_(alarm, self._now())

    def clear(self, key: str) -> None:
        """A room says that it is over."""
        self.book.clear(key, self._now())

    def look(self, snapshot: Snapshot) -> None:
        """Take in what is not well."""
        gpus = snapshot.gpus.gpus if snapshot.gpus else ()
        names = {one.uuid: GpuName(one.index, one.bus_id) for one in gpus}
        for alarm in health_alarms(snapshot.health, names):
            self.alarm(alarm)
        for key in healthy_keys(snapshot.health):
            self.clear(key)

    # --- the loop ----------------------------------------------------------------------------------

    def turn(self) -> None:
        """Store what has changed, then send what waits: on disk an event comes before its message."""
        if not self._restored and self._ledger.opened:
            self._restored = True
            self.book.restore(_stored(self._ledger))
        self.book.tidy(self._lines, self._now())
        for key, event in self.book.changed() if self._restored else ():
            self._ledger.remember(ROW + key, msgspec.json.encode(event) if event else b"")
        if self._restored or time.monotonic() > self._alone_at:  # or a restart would tell all again
            for line in self._lines.values():
                self._send(line)

    def _send(self, line: Line) -> None:
        event = line.next(self.book, time.monotonic())
        if event is None:
            return
        message = message_of(event, self._node, self._link, __version__)
        line.under_way = line.worker.order(Sent(message, event, line))

    def told(self, result: Result) -> bool:
        """A channel has answered; False where it was somebody else."""
        if not result.worker.startswith(WORKER):
            return False
        line, event, now = result.order.line, result.order.event, time.monotonic()
        line.under_way = False
        if isinstance(result.error, RefusedError):
            line.refused += 1
            log.error("channel %s refuses: %s", line.name, safe_line(str(result.error), 200))
        elif result.error is not None:
            line.failure(result.error, now)
            return True
        else:
            line.done(event.key, now)
        self.book.told(event.key, line.name, str(event.state), event.started)
        return True

    # --- what others see ---------------------------------------------------------------------------

    def show(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot with the events and how the channels do."""
        for line in self._lines.values():
            line.keep_only({one.key for one in self.book.firing()})
        known = [one for one in self.book.all() if one.state is not State.PENDING]
        events = Events(
            events=tuple(map(_view, known[-SHOWN:])),
            counts=_counts(known),
            dropped=self.book.dropped,
            channels=tuple(self._state(line) for line in self._lines.values()),
        )
        workers = tuple(line.worker.state() for line in self._lines.values())
        return msgspec.structs.replace(
            snapshot, events=events, sources=(*snapshot.sources, *workers)
        )

    def _state(self, line: Line) -> ChannelState:
        return ChannelState(
            name=line.name,
            kind=line.plugin.kind,
            waiting=len(self.book.untold(line.name)),
            sent=line.sent,
            failed=line.failed,
            refused=line.refused,
            last_success=line.last_success,
            trouble=line.trouble,
        )

    def _obey(self, wanted: Mapping[str, Plugin]) -> None:
        lines = {}
        for name, plugin in wanted.items():
            known = self._lines.get(name)
            same = known is not None and known.plugin == plugin
            lines[name] = known if known and same else Line(name, plugin, self._inbox)
        self._lines = lines


def _view(event: Event) -> EventView:
    alarm = event.alarm
    return EventView(
        key=event.key,
        kind=alarm.kind,
        severity=str(alarm.severity),
        state=str(event.state),
        sentence=alarm.sentence,
        started=event.started,
        ended=event.ended,
        outcome=event.outcome,
        report=alarm.report,
        uid=alarm.uid,
        labels=alarm.labels,
    )


def _counts(known: list[Event]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in known:
        if one.state is State.FIRING:
            name = f"{one.alarm.kind}/{one.alarm.severity}"
            counts[name] = counts.get(name, 0) + 1
    return counts


def _stored(ledger: Ledger) -> list[Event]:
    """What is stored; a row that cannot be read, of another version, is skipped."""
    found = []
    for name in ledger.memos(ROW):
        try:
            found.append(msgspec.json.decode(ledger.memo(name), type=Event))
        except msgspec.DecodeError:
            log.warning("an event that was stored cannot be read, and is forgotten")
            ledger.remember(name, b"")
    return found
