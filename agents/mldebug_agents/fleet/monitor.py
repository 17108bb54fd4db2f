"""Sends what this agent finds to the hub of its fleet: makes events of each look, keeps them until the hub has them, never waits for it.

Belongs to the main loop's thread; only its worker's thread talks to the hub.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from mldebug import __version__
from mldebug.alerts.hub_delivery import FleetDelivery
from mldebug.alerts.model import AlertEvent
from mldebug.fleet.batches import MAX_BATCH, MAX_EVENTS, BatchAnswer, packed
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.making import events_of
from mldebug.status.snapshot import Snapshot
from mldebug_agents.fleet.outbox import Outbox
from mldebug_agents.fleet.setup import as_sentence
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

WORKER = "fleet"
DEADLINE = 60.0  # seconds after which a delivery counts as stuck
SEND_EVERY = 2.0  # seconds between two batches, so that one has several events
PAUSE_FIRST, PAUSE_MOST = 2.0, 300.0  # seconds until the next try, after failures
SPREAD = 0.3  # of a pause, at random: a hub that comes back is not asked by all at once
MOST_BYTES = MAX_BATCH // 2  # of a batch's events


class Delivery(NamedTuple):
    """An order to the worker: a batch, and the events in it."""

    body: bytes
    events: tuple[AnyEvent, ...]


class FleetMonitor:
    """Offers everything that the agent knows to the outbox, and has its events delivered. `worker` None: no hub is configured.

    `alerts` returns all alerts of the agent; `hub`: the hub's address, for people.
    """

    def __init__(
        self,
        node: str,
        hub: str,
        outbox: Outbox,
        worker: Worker | None,
        alerts: Callable[[], Iterable[AlertEvent]],
        opened: Callable[[], bool],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`opened`: whether the agent's store has been read."""
        self._node, self._hub = node, hub
        self._outbox, self._worker = outbox, worker
        self._alerts, self._opened, self._steady = alerts, opened, steady
        self._restored = False
        self._due, self._pause = 0.0, PAUSE_FIRST
        self._state = FleetDelivery(hub=hub)
        self._refused: Counter[str] = Counter()

    def tick(self) -> None:
        """Have the next batch sent, where one waits and it is time."""
        if self._worker is None or not self._opened():
            return
        if not self._restored:
            self._restored = True
            self._outbox.restore()
        if self._worker.busy or self._steady() < self._due:
            return
        if events := self._outbox.batch(MAX_EVENTS, MOST_BYTES):
            lost = dict(self._outbox.lost)
            self._worker.order(Delivery(packed(self._node, __version__, events, lost), events))
            self._due = self._steady() + SEND_EVERY

    def on_result(self, result: Result) -> bool:
        """Handle the result of a delivery. Returns False where it comes from another worker."""
        if self._worker is None or result.worker != self._worker.name:
            return False
        if result.error is not None:
            self._failed(as_sentence(result.error))
        else:
            self._delivered(result.order.events, result.value)
        return True

    def show(self, snapshot: Snapshot) -> Snapshot:
        """Make events of what is new in the snapshot. Returns it with the state of the delivery added."""
        if self._worker is None:
            return snapshot
        if self._restored:
            for event in events_of(snapshot, self._alerts()):
                self._outbox.offer(event, snapshot.at)
            self._outbox.tidy(snapshot.at)
        state = msgspec.structs.replace(
            self._state,
            waiting=self._outbox.waiting,
            waiting_bytes=self._outbox.waiting_bytes,
            lost=dict(self._outbox.lost),
            refused=dict(self._refused),
        )
        sources = (*snapshot.sources, self._worker.state())
        return msgspec.structs.replace(snapshot, fleet=state, sources=sources)

    def _delivered(self, events: tuple[AnyEvent, ...], answer: BatchAnswer) -> None:
        self._outbox.acknowledge(events)
        self._pause = PAUSE_FIRST
        refusal = self._state.refusal
        for trouble in answer.troubles:
            self._refused[trouble.reason[:40]] += 1
            refusal = trouble.why[:300]
        if more := answer.refused - len(answer.troubles):
            self._refused["other"] += more
        if answer.refused:
            log.warning("the hub has refused %d events: %s", answer.refused, refusal)
        if self._state.trouble:
            log.info("the hub %s takes events again", self._hub)
        self._state = msgspec.structs.replace(
            self._state,
            sent=self._state.sent + answer.stored + answer.doubles,
            doubles=self._state.doubles + answer.doubles,
            last_success=time.time(),
            trouble="",
            refusal=refusal,
        )

    def _failed(self, why: str) -> None:
        if why != self._state.trouble:
            log.warning("the hub %s has not taken events: %s", self._hub, why)
        self._state = msgspec.structs.replace(self._state, trouble=why)
        spread = 1 + SPREAD * random.uniform(-1, 1)  # noqa: S311 - no secret
        self._due = self._steady() + self._pause * spread
        self._pause = min(PAUSE_MOST, 2 * self._pause)
