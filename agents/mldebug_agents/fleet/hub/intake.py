"""Takes batches of events: checks each event, stores what is new, and remembers what each node sends.

Many threads bring batches; one thread stores those that came meanwhile in one transaction, and only then they are answered.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

import msgspec

from mldebug.core.redact import clean
from mldebug.fleet.batches import MAX_EVENTS, MAX_TROUBLES, BatchAnswer, FleetBatch, RefusedEvent
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.hub_model import BatchRefusedError, FleetStore, ReceivedBatch
from mldebug.fleet.validation import EventRefusedError, believed
from mldebug_agents.cluster.peers.net.refusals import Refusals

log = logging.getLogger("mldebug")

MOST_NODES = 20_000  # that are remembered
MOST_AT_ONCE = 64  # batches of one transaction
PATIENCE = 25.0  # seconds that a batch waits for the disk: its sender waits for 30
BURST, RATE = 20_000.0, 50.0  # events of one node: at once, and in each second
TWO_ADDRESSES = 600.0  # seconds within which one node is heard from two addresses


class Sender(msgspec.Struct, kw_only=True):
    """What the hub knows of one node as a sender. `lost`: events that its agent had to drop, by kind."""

    node: str
    version: str = ""
    address: str = ""
    at: float = 0.0  # unix, of its last batch
    stored: int = 0
    doubles: int = 0
    refused: dict[str, int] = {}
    lost: dict[str, int] = {}
    why: str = ""  # of its last refusal
    other_address: str = ""  # from which it is heard, too
    allowance: float = BURST


class _Waiting(NamedTuple):
    events: list[AnyEvent]
    done: "Future[int]"


class Intake:
    """Takes the batches of all transports. `refusals` counts what is refused, by reason; `now`: unix time."""

    def __init__(
        self,
        store: FleetStore,
        refusals: Refusals,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.received: Counter[str] = Counter()  # batches, events, doubles
        self.trouble = ""  # why the last transaction failed
        self._store, self._refusals, self._now = store, refusals, now
        self._senders: dict[str, Sender] = {}
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mldebug-hub-store", daemon=True)
        self._thread.start()

    def take(self, came: ReceivedBatch) -> BatchAnswer:
        """Store a batch; returns when that is on disk. Raises BatchRefusedError where its node is not its sender or sends too much,
        OSError where the disk fails or takes too long.
        """
        batch, now = came.batch, self._now()
        sender = came.sender or batch.node
        if batch.node != sender:
            why = f"it calls itself {clean(batch.node, 60)}, and is {clean(sender, 60)}"
            self._refuse_batch(sender, "name", why, came.address)
        self._meet(came, now)
        events, troubles = self._believed(batch, now)
        stored = self._stored(events)
        doubles = len(events) - stored
        self._count(batch, stored, doubles, troubles, came.address)
        return BatchAnswer(
            stored=stored,
            doubles=doubles,
            refused=len(troubles),
            troubles=tuple(troubles[:MAX_TROUBLES]),
        )

    def keep(self, event: AnyEvent) -> None:
        """Store one event that a person has made at this hub. Raises OSError as `take` does."""
        self._stored([event])

    def senders(self) -> tuple[Sender, ...]:
        """All nodes that have sent batches to this hub, sorted by name."""
        with self._lock:
            copies = [msgspec.structs.replace(one) for one in self._senders.values()]
        return tuple(sorted(copies, key=lambda one: one.node))

    def refused(self) -> dict[str, int]:
        """How many batches and events were refused, by reason."""
        return self._refusals.counts

    def close(self) -> None:
        """Store what waits, and end the thread."""
        self._queue.put(None)
        self._thread.join(PATIENCE)

    def _stored(self, events: list[AnyEvent]) -> int:
        """Have them stored, and say how many were new."""
        done: Future[int] = Future()
        self._queue.put(_Waiting(events, done))
        try:
            return done.result(PATIENCE)
        except TimeoutError:
            raise OSError(f"the hub's disk has not taken it in {PATIENCE:g} s") from None

    # --- one batch ---------------------------------------------------------------------------------

    def _refuse_batch(self, node: str, reason: str, why: str, address: str) -> None:
        self._refusals.count(reason, address or node, why)
        raise BatchRefusedError(reason, why)

    def _meet(self, came: ReceivedBatch, now: float) -> None:
        """Note who sends, and from where. A node may send only so many events."""
        count = len(came.batch.events)
        with self._lock:
            sender = self._senders.pop(came.batch.node, None) or Sender(node=came.batch.node)
            self._senders[sender.node] = sender  # the last one heard of stands last
            if len(self._senders) > MOST_NODES:
                del self._senders[next(iter(self._senders))]
            quiet = now - sender.at
            if sender.address not in ("", came.address) and 0 <= quiet < TWO_ADDRESSES:
                sender.other_address = sender.address
            sender.allowance = min(BURST, sender.allowance + RATE * max(0.0, quiet))
            has_room = count <= sender.allowance
            sender.allowance -= count if has_room else 0
            sender.at, sender.address, sender.version = now, came.address, came.batch.version
            sender.lost = dict(came.batch.lost)
        if not has_room:
            self._refuse_batch(sender.node, "storm", f"{sender.node} sends too many events", came.address)  # fmt: skip

    def _believed(self, batch: FleetBatch, now: float) -> tuple[list[AnyEvent], list[RefusedEvent]]:
        events: list[AnyEvent] = []
        troubles: list[RefusedEvent] = []
        for place, raw in enumerate(batch.events[:MAX_EVENTS]):
            try:
                events.append(believed(bytes(raw), batch.node, now))
            except EventRefusedError as error:
                troubles.append(RefusedEvent(place, error.reason, str(error)))
        return events, troubles

    def _count(
        self,
        batch: FleetBatch,
        stored: int,
        doubles: int,
        troubles: list[RefusedEvent],
        address: str,
    ) -> None:
        for one in troubles:
            self._refusals.count(one.reason, address, f"an event of {batch.node}: {one.why}")
        with self._lock:
            self.received.update(batches=1, events=stored, doubles=doubles, refused=len(troubles))
            sender = self._senders.get(batch.node)
            if sender is None:
                return
            sender.stored += stored
            sender.doubles += doubles
            refused = Counter(sender.refused)
            refused.update(one.reason for one in troubles)
            sender.refused = dict(refused)
            sender.why = troubles[-1].why if troubles else sender.why

    # --- the thread that stores --------------------------------------------------------------------

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            waiting, last = self._all_that_wait(first)
            self._store_all(waiting)
            if last:
                return

    def _all_that_wait(self, first: _Waiting) -> tuple[list[_Waiting], bool]:
        """Whatever waits now, with the first; and whether this is the end."""
        waiting = [first]
        while len(waiting) < MOST_AT_ONCE:
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                return waiting, False
            if one is None:
                return waiting, True
            waiting.append(one)
        return waiting, False

    def _store_all(self, waiting: list[_Waiting]) -> None:
        try:
            counts = self._store.add([one.events for one in waiting], self._now())
        except Exception as error:  # noqa: BLE001 - each sender hears it and tries again
            if str(error) != self.trouble:
                log.error("events cannot be stored: %s", error)
            self.trouble = str(error)
            for one in waiting:
                one.done.set_exception(OSError(str(error)))
            return
        self.trouble = ""
        for one, count in zip(waiting, counts, strict=True):
            one.done.set_result(count)
