"""Alerts in the agent: monitors raise them, the state store keeps them, and each channel gets each change of each alert once.

An event's row in the store says which channels have acknowledged it. What a channel has not acknowledged when the agent is killed
is sent by the next agent, under the same id. Belongs to the main loop's thread; channels block only in workers of their own.
"""

import logging
import queue
import time
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from mldebug import __version__
from mldebug.alerts.event_registry import EventRegistry
from mldebug.alerts.health_events import health_alerts, health_key, healthy_keys
from mldebug.alerts.job_events import of_orphans, of_schedulers
from mldebug.alerts.message import alive, cleaned, message_of
from mldebug.alerts.model import Alert, AlertEvent, EventState, MessageRefusedError, Severity
from mldebug.alerts.node_events import (
    SubjectAlerts,
    of_checkpoints,
    of_memory,
    of_storage,
    together,
)
from mldebug.alerts.probe_events import of_probes
from mldebug.alerts.rank_map import rank_map
from mldebug.alerts.view import ChannelState, EventsView, EventView
from mldebug.config.schema import Config
from mldebug.core.model import Culprit, Job, Judgement, shared_fields
from mldebug.core.plugin_options import Plugin
from mldebug.goodput.account.run_summary import summary_alerts
from mldebug.goodput.scalars.alerts import training_alerts
from mldebug.hardware.health.sentences import GpuName
from mldebug.incidents.incident import Incident
from mldebug.jobs.owners import in_turns, owner_of
from mldebug.status.snapshot import Snapshot
from mldebug_agents.alerts.delivery import WORKER, ChannelDelivery
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.workers import Result

INCIDENT = "incident/"
# seconds: a job that has failed is over at once, and a receiver that groups alerts (Alertmanager: 30 s and then 5 min) has to
# find it firing
STANDS = 600.0


def alert_of(incident: Incident, judgement: Judgement, uid: int) -> Alert:
    """The alert of one incident. Its labels never change, so the verdict, which may be refined later, is not among them."""
    diagnosis, job = judgement.diagnosis, _job(incident)
    name = {"job": job.name} if job is not None else {}
    return Alert(
        key=f"{INCIDENT}{incident.id}",
        kind=incident.kind,
        severity=Severity.WARNING if incident.kind == "slowdown" else Severity.CRITICAL,
        sentence=diagnosis.summary or incident.sentence,
        labels={"run": incident.job_id, **name},
        next_steps=diagnosis.next_steps,
        culprits=tuple(map(_culprit, diagnosis.culprits)),
        blamed=diagnosis.culprits,
        map=rank_map(judgement),
        verdict=str(diagnosis.verdict),
        confidence=diagnosis.confidence,
        report=incident.id,
        uid=uid,
        owner=owner_of(job) if job is not None else None,
        since=incident.stalled_since or incident.detected_at,
        stands=STANDS if incident.kind == "abnormal_end" else 0.0,
    )


def is_ours_to_report(incident: Incident) -> bool:
    """Whether this node sends the alert of an incident: where it concerns several nodes, only the one with the report of all of
    them does.
    """
    return incident.counted or bool(incident.node_captures) or not incident.shared


def _job(incident: Incident) -> Job | None:
    return incident.job or (incident.exit.job if incident.exit else None)


def _culprit(one: Culprit) -> str:
    who = f"rank {one.rank} on {one.node}" if one.rank is not None else f"{one.kind} {one.node}"
    pid = f" (pid {one.pid})" if one.pid is not None else ""
    return f"{who}{pid}: {one.reason}"


log = logging.getLogger("mldebug")

MEMORY_WAIT = (
    30.0  # seconds for which an agent waits for its memory before it tells anybody anything
)
ROW = "event:"
SHOWN = 100  # events in a snapshot
STORED_WITHIN = 5.0  # seconds for which a message waits until its event is on disk
WORDS_EVERY = 60.0  # seconds between two times that new words of an old event are stored
LOST = 900.0  # seconds after which an event is over of which nobody speaks any more


class AlertNotifier:
    """All alerts of one agent, and the channels that get them. For the main loop's thread; channels block in workers."""

    def __init__(
        self,
        config: Config,
        node: str,
        store: StateStore,
        inbox: "queue.SimpleQueue[Result | None]",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.registry = EventRegistry(config.events.pending)
        self._link, self._summaries = config.events.link, config.goodput.summary
        self._node = node
        self._state_store = store
        self._inbox = inbox
        self._now = now
        self._restored = False
        self._alone_at = time.monotonic() + MEMORY_WAIT
        self._lines: dict[str, ChannelDelivery] = {}
        self._words_due = 0.0
        self._unstored: dict[str, float] = {}  # key -> since when it waits for the disk
        self._spoken: dict[str, float] = {}  # key -> when it was raised last
        self._configure(config.channels)

    def reload(self, config: Config) -> None:
        """Use this configuration from now on. Events that were not delivered yet wait for the remaining and the new channels."""
        self.registry.set_pending(config.events.pending)
        self._link, self._summaries = config.events.link, config.goodput.summary
        self._configure(config.channels)

    # --- what monitors raise -----------------------------------------------------------------------

    def incident(self, incident: Incident, judgement: Judgement, uid: int) -> None:
        """Raise or update the alert of an incident that was just written to disk, or resolve it where the incident is over.
        Does nothing where another node reports it. `uid`: the user who owns the run.
        """
        alert = cleaned(alert_of(incident, judgement, uid))
        if is_ours_to_report(incident) or self.registry.get(alert.key):
            if incident.state == "open" or self.registry.get(alert.key) is None:
                self.registry.raise_(alert, self._now(), at_once=True)
            if incident.state != "open":
                self.registry.clear(alert.key, self._now(), incident.state)

    def renamed(self, old: str) -> None:
        """Resolve the alert of an incident that continues under another id, here or on another node. `old`: its former id."""
        self.registry.clear(INCIDENT + old, self._now(), "other nodes know it under another id")

    def raise_alert(self, alert: Alert) -> None:
        """Raise an alert. To be called again at every turn of the main loop for as long as the problem lasts."""
        self.registry.raise_(cleaned(alert), self._now())

    def clear(self, key: str) -> None:
        """Resolve the event with this key."""
        self.registry.clear(key, self._now())

    def look(self, snapshot: Snapshot, incidents: Collection[str] = ()) -> None:
        """Raise an alert for each problem in the snapshot (health, storage, checkpoints and so on), and resolve the alerts
        whose problem is over. `incidents`: ids of the open incidents.
        """
        now = time.monotonic()
        gpus = snapshot.gpus.gpus if snapshot.gpus else ()
        names = {one.uuid: GpuName(one.index, one.bus_id) for one in gpus}
        word = together(_subject_alerts(snapshot, summaries=self._summaries))
        raised = {one.key for one in word.alerts}
        for alert in (*health_alerts(snapshot.health, names), *word.alerts):
            self.raise_alert(alert)
        for key in healthy_keys(snapshot.health):
            self.clear(key)
        for key in self.registry.keys(""):
            if word.is_over(key) and key not in raised:
                self.clear(key)
        known = {health_key(one) for one in snapshot.health} | raised
        known |= {INCIDENT + one for one in incidents}
        known |= {key for key in self.registry.keys("") if key.startswith(word.unsure)}
        self._forget_lost(known, now)

    def _forget_lost(self, known: Collection[str], now: float) -> None:
        """A GPU was replaced, a mount is gone, the agent before was killed while it closed an incident."""
        self._spoken = {key: self._spoken.get(key, now) for key in self.registry.keys("")}
        self._spoken |= dict.fromkeys(self._spoken.keys() & set(known), now)
        for key, at in self._spoken.items():
            event = self.registry.get(key)
            if now - at > LOST and event is not None and event.ended is None:
                self.registry.clear(key, self._now(), "nobody knows of it any more")

    # --- the loop ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Store changed events, then have waiting messages sent: an event is on disk before any channel gets it."""
        if not self._restored and self._state_store.opened:
            self._restored = True
            self.registry.restore(_stored(self._state_store))
        channels = [name for name, line in self._lines.items() if not line.every]
        self.registry.tidy(channels, self._now())
        self._store(time.monotonic())
        if self._restored or time.monotonic() > self._alone_at:  # or a restart would tell all again
            for line in self._lines.values():
                self._send(line)

    def _store(self, now: float) -> None:
        if not self._restored:
            return
        words = now >= self._words_due
        self._words_due = now + WORDS_EVERY if words else self._words_due
        for key, event in self.registry.changed(words=words):
            self._state_store.remember(ROW + key, msgspec.json.encode(event) if event else b"")

    def _send(self, line: ChannelDelivery) -> None:
        now = time.monotonic()
        if line.beats(now):
            line.send(alive(self._node, self._now(), __version__), None)
        event = line.next(self.registry, now)
        if event is None or not self._may_go(event.key, now):
            return
        line.send(message_of(event, self._node, self._link, __version__), event)

    def _may_go(self, key: str, now: float) -> bool:
        """Is the event on disk, or has the disk had its time? A hung disk must not keep messages back."""
        if not self._restored or self._state_store.is_stored(ROW + key):
            self._unstored.pop(key, None)
            return True
        return now - self._unstored.setdefault(key, now) > STORED_WITHIN

    def on_result(self, result: Result) -> bool:
        """Handle the result of a channel's worker. Returns False where it comes from another worker."""
        if not result.worker.startswith(WORKER):
            return False
        line, event, now = result.order.line, result.order.event, time.monotonic()
        key = event.key if event is not None else ""
        line.answered()
        if isinstance(result.error, MessageRefusedError):
            line.refusal(key, result.error)
        elif result.error is not None:
            line.failure(key, result.error, now)
            return True
        else:
            line.done(key, now)
        if event is not None:
            self.registry.acknowledge(event.key, line.name, str(event.state), event.started)
        return True

    # --- what others see ---------------------------------------------------------------------------

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the events and the state of the channels added."""
        everything = {one.key for one in self.registry.all()}
        self._unstored = {key: at for key, at in self._unstored.items() if key in everything}
        for line in self._lines.values():
            line.keep_only(everything)
        known = [one for one in self.registry.all() if one.state is not EventState.PENDING]
        events = EventsView(
            events=tuple(map(_view, _newest(known))),
            counts=_counts(known),
            dropped=self.registry.dropped,
            channels=tuple(self._state(line) for line in self._lines.values()),
        )
        workers = tuple(line.worker.state() for line in self._lines.values())
        return msgspec.structs.replace(
            snapshot, events=events, sources=(*snapshot.sources, *workers)
        )

    def _state(self, line: ChannelDelivery) -> ChannelState:
        waiting = 0 if line.every else len(self.registry.unsent(line.name))
        return msgspec.structs.replace(line.state, waiting=waiting)

    def _configure(self, wanted: Mapping[str, Plugin]) -> None:
        lines = {}
        for name, plugin in wanted.items():
            known = self._lines.get(name)
            same = known is not None and known.plugin == plugin
            lines[name] = known if known and same else ChannelDelivery(name, plugin, self._inbox)
        self._lines = lines


def _subject_alerts(snapshot: Snapshot, *, summaries: bool) -> Iterator[SubjectAlerts]:
    if snapshot.storage is not None:
        yield from of_storage(snapshot.storage.parts)
    yield from of_memory(snapshot.memory)
    yield from of_schedulers(snapshot.schedulers, snapshot.at)
    yield from of_orphans(snapshot.orphans)
    yield from of_probes(snapshot.probes)
    yield from of_checkpoints("", -1, snapshot.checkpoint_series)
    yield from training_alerts(snapshot.histories, [run.id for run in snapshot.runs], snapshot.at)
    yield from summary_alerts(snapshot.goodput if summaries else (), snapshot.at)
    for run in snapshot.runs:
        yield from of_checkpoints(run.id, run.uid, run.checkpoint_series)


def _newest(events: list[AlertEvent]) -> list[AlertEvent]:
    """As many as are shown, the newest of each user, in their order: nobody's many push out another's."""
    shown = in_turns(reversed(events), lambda one: one.alert.share)[:SHOWN]
    return sorted(shown, key=lambda one: one.started)


def _view(event: AlertEvent) -> EventView:
    return EventView(
        **shared_fields(event, EventView),
        **shared_fields(event.alert, EventView),
        severity=str(event.alert.severity),
        state=str(event.state),
    )


def _counts(known: list[AlertEvent]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in known:
        if one.state is EventState.FIRING:
            name = f"{one.alert.kind}/{one.alert.severity}"
            counts[name] = counts.get(name, 0) + 1
    return counts


def _stored(store: StateStore) -> list[AlertEvent]:
    """What is stored; a row that cannot be read, of another version, is skipped."""
    found = []
    for name in store.memos(ROW):
        try:
            found.append(msgspec.json.decode(store.memo(name), type=AlertEvent))
        except msgspec.DecodeError:
            log.warning("an event that was stored cannot be read, and is forgotten")
            store.remember(name, b"")
    return found
