"""The events that wait for the hub, and what was made of each subject last, so that only what is new becomes an event.

One row for each subject (an incident, an attempt, a GPU's fault …) in the agent's store, written in one piece: with it the newest state
that became an event, and the events that the hub has not acknowledged. An agent that is killed finds either both or none. Belongs
to the main loop's thread.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import msgspec

from mldebug.fleet.events import (
    AnyEvent,
    AttemptEvent,
    CheckpointEvent,
    FleetEvent,
    HardwareFaultEvent,
    IncidentEvent,
    JobEvent,
    NodeHealthEvent,
    content,
    is_over,
    kind_of,
    with_id,
)
from mldebug_agents.state.key_value_store import KeyValueStore, hashed_name

log = logging.getLogger("mldebug")

ROW = "fleet:"
MOST_SUBJECTS = 5000  # rows, those included of which nothing waits
KEPT = 7200.0  # seconds for which a row stays of which nobody speaks any more
HOUR = 3600.0
GO_FIRST = ("checkpoint", "probe", "node_health", "hardware_fault", "incident", "attempt", "job")
"""In this order kinds of events give way where too many wait; of one kind the oldest."""


class EventStore(KeyValueStore, Protocol):
    """Keeps the rows of an `Outbox` on disk, and says which of them have been written."""

    def is_stored(self, name: str) -> bool:
        """Whether no write of this value waits any more."""
        ...


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of one subject. `digest`: of the state that became an event last; `made_at`: unix, when it did."""

    subject: str
    digest: str
    revision: int
    made_at: float
    waiting: tuple[AnyEvent, ...] = ()


_ROWS = msgspec.json.Decoder(OutboxRow)


class Outbox:
    """Events that wait for the hub, at most `most` of them with at most `most_bytes`. `lost`: how many had to go, by kind."""

    def __init__(self, store: EventStore, most: int, most_bytes: int) -> None:
        self.lost: Counter[str] = Counter()
        self.waiting_bytes = 0
        self._store = store
        self._most, self._most_bytes = most, most_bytes
        self._rows: dict[str, OutboxRow] = {}
        self._offered: dict[str, float] = {}  # subject -> when it was offered last
        # kind -> id of each event that waits, the oldest first, with its subject and size
        self._queues: dict[str, dict[str, tuple[str, int]]] = {kind: {} for kind in GO_FIRST}

    @property
    def waiting(self) -> int:
        """The number of events that wait to be sent to the hub."""
        return sum(map(len, self._queues.values()))

    def restore(self) -> None:
        """Take over the rows of an earlier agent. What cannot be read is forgotten."""
        for name in self._store.memos(ROW):
            try:
                row = _ROWS.decode(self._store.memo(name))
            except msgspec.MsgspecError:
                log.warning(
                    "what was stored for the hub cannot be read, and is forgotten: %s", name
                )
                self._store.remember(name, b"")
                continue
            self._rows[row.subject] = row
            for event in row.waiting:
                self._queue(event)
        self._bound()

    def offer(self, event: AnyEvent, now: float) -> None:
        """Take a subject's present state (an event without id). It becomes an event where it is new; what only counts on becomes
        one now and then. `now`: unix time.
        """
        self._offered[event.subject] = now
        row, digest = self._rows.get(event.subject), content(event).hex()
        if row is not None and not _is_due(event, row, digest, now):
            return
        revision = row.revision + 1 if row else 1
        state = _once_more(event, now) if row else event
        made = with_id(msgspec.structs.replace(state, revision=revision))
        before = row.waiting if row else ()
        self._keep(
            OutboxRow(
                subject=event.subject,
                digest=digest,
                revision=revision,
                made_at=now,
                waiting=(*before, made),
            )
        )
        self._queue(made)
        self._bound()

    def batch(self, most: int, most_bytes: int) -> tuple[AnyEvent, ...]:
        """The next events to send, the important ones first: those that are on disk, so that a later agent sends nothing else
        under their ids.
        """
        found: list[AnyEvent] = []
        size = 0
        for subject, id, bytes_ in self._in_order():
            if len(found) >= most or size + bytes_ > most_bytes:
                break
            if self._store.is_stored(_name(subject)):
                found += [one for one in self._rows[subject].waiting if one.id == id]
                size += bytes_
        return tuple(found)

    def acknowledge(self, events: tuple[AnyEvent, ...]) -> None:
        """Forget events that the hub has stored or refused."""
        for event in events:
            self._remove(kind_of(event), event.id)

    def tidy(self, now: float) -> None:
        """Forget subjects of which nothing waits and nobody has spoken for two hours, and the oldest of too many."""
        idle = [name for name, row in self._rows.items() if not row.waiting]
        old = [name for name in idle if not now - self._offered.setdefault(name, now) < KEPT]
        surplus = len(self._rows) - len(old) - MOST_SUBJECTS
        if surplus > 0:
            left = sorted(set(idle) - set(old), key=lambda name: self._rows[name].made_at)
            old += left[:surplus]
        for name in old:
            del self._rows[name]
            self._offered.pop(name, None)
            self._store.remember(_name(name), b"")

    # --- inside ------------------------------------------------------------------------------------

    def _in_order(self) -> Iterator[tuple[str, str, int]]:
        for kind in reversed(GO_FIRST):
            for id, (subject, size) in self._queues[kind].items():
                yield subject, id, size

    def _keep(self, row: OutboxRow) -> None:
        self._rows[row.subject] = row
        self._store.remember(_name(row.subject), msgspec.json.encode(row))

    def _queue(self, event: AnyEvent) -> None:
        size = len(msgspec.json.encode(event))
        if event.id not in self._queues[kind_of(event)]:
            self._queues[kind_of(event)][event.id] = event.subject, size
            self.waiting_bytes += size

    def _remove(self, kind: str, id: str) -> None:
        if (found := self._queues[kind].pop(id, None)) is None:
            return
        subject, size = found
        self.waiting_bytes -= size
        row = self._rows[subject]
        left = tuple(one for one in row.waiting if one.id != id)
        self._keep(msgspec.structs.replace(row, waiting=left))

    def _bound(self) -> None:
        while self.waiting > self._most or self.waiting_bytes > self._most_bytes:
            kind = next(kind for kind in GO_FIRST if self._queues[kind])
            self._remove(kind, next(islice(self._queues[kind], 1)))
            self.lost[kind] += 1


def _is_due(event: FleetEvent, row: OutboxRow, digest: str, now: float) -> bool:
    """Whether a subject's state becomes an event, with the row of the one before."""
    age = now - row.made_at
    if row.digest == digest:  # each hour a node says that it is still there
        return isinstance(event, NodeHealthEvent) and not 0 <= age < HOUR
    return not 0 <= age < _pace(event)


def _pace(event: FleetEvent) -> float:
    """Seconds between two events of one subject whose state changes all the time."""
    if is_over(event):
        return 0.0
    match event:
        case AttemptEvent():
            return HOUR
        case JobEvent(runs=living):
            return HOUR if living else 60.0
        case CheckpointEvent(state="complete"):
            return 600.0
        case IncidentEvent():
            return 10.0
        case HardwareFaultEvent() | NodeHealthEvent() | CheckpointEvent():
            return 60.0
    return 0.0


def _once_more(event: AnyEvent, now: float) -> AnyEvent:
    """The state of an incident or fault that is not over and was an event before."""
    if isinstance(event, IncidentEvent | HardwareFaultEvent) and event.ended is None:
        return msgspec.structs.replace(event, state="changed", at=max(now, event.at))
    return event


def _name(subject: str) -> str:
    return hashed_name(ROW, subject)
