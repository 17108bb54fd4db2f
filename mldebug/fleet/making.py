"""Makes events of a fleet from what an agent knows: its alerts, and its snapshot. Pure.

Called at each look with everything that is known; what has not changed since the last time is found by `events.content`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from mldebug.alerts.health_events import HEALTH
from mldebug.alerts.model import AlertEvent, EventState
from mldebug.core.model import Culprit
from mldebug.core.redact import safe_line
from mldebug.fleet.events import (
    MAX_CULPRITS,
    MAX_GPUS,
    MAX_LINES,
    AnyEvent,
    AttemptEvent,
    CheckpointEvent,
    FleetCulprit,
    FleetGpu,
    HardwareFaultEvent,
    IncidentEvent,
    JobEvent,
    NodeHealthEvent,
    ProbeEvent,
)
from mldebug.goodput.account.job_goodput import AttemptGoodput, JobGoodput
from mldebug.hardware.gpu.readings import NodeGpus
from mldebug.hardware.health.model import ACTION_WORDS, HealthState, worst_of
from mldebug.probes.history import JudgedSeries
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.state import SeriesState

INCIDENT = "incident/"
KINDS_OF_INCIDENTS = ("stall", "abnormal_end", "slowdown")
WORD, NAME, LINE = 64, 200, 600  # characters, as in `events`
NODE_HEALTH = "node"  # subject
ACTIONS = {words: str(action) for action, words in ACTION_WORDS.items()}


def events_of(snapshot: Snapshot, alerts: Iterable[AlertEvent]) -> Iterator[AnyEvent]:
    """What an agent would send to a hub if it had sent nothing before, without ids and revisions."""
    node, gpus = snapshot.node, gpus_of(snapshot.gpus)
    names = {run.id: run.name for run in snapshot.runs}
    yield from _of_alerts(alerts, node, gpus, names)
    for job in snapshot.goodput:
        yield from _of_job(job, node)
    for run in snapshot.runs:
        for state in run.checkpoint_series:
            yield from _of_checkpoints(state, run, node)
    for judged in snapshot.probes or ():
        yield from _of_probe(judged, node)
    if snapshot.health:
        yield _of_node(snapshot, gpus)


def gpus_of(read: NodeGpus | None) -> dict[str, FleetGpu]:
    """The GPUs of a full reading, by uuid."""
    found = {}
    for one in (read.gpus if read else ())[:MAX_GPUS]:
        found[one.uuid] = FleetGpu(
            uuid=safe_line(one.uuid, NAME),
            serial=safe_line(one.serial, WORD),
            index=one.index if 0 <= one.index <= 1024 else None,
            model=safe_line(one.name, NAME),
        )
    return found


def _of_alerts(
    alerts: Iterable[AlertEvent],
    node: str,
    gpus: Mapping[str, FleetGpu],
    names: Mapping[str, str],
) -> Iterator[AnyEvent]:
    for event in alerts:
        if event.state is EventState.PENDING:
            continue
        if event.key.startswith(INCIDENT):
            yield from _of_incident(event, node, names)
        elif event.key.startswith(HEALTH):
            yield _of_fault(event, node, gpus)


def _of_incident(event: AlertEvent, node: str, names: Mapping[str, str]) -> Iterator[IncidentEvent]:
    alert, over = event.alert, event.ended
    run = alert.labels.get("run", "")
    for kind in KINDS_OF_INCIDENTS:
        if alert.kind == kind:
            yield IncidentEvent(
                node=node,
                subject=safe_line(event.key, NAME),
                at=event.started if over is None else over,
                job=safe_line(alert.labels.get("job", "") or names.get(run, ""), NAME),
                run=safe_line(run, NAME),
                uid=alert.uid,
                state="opened" if over is None else "ended",
                incident=safe_line(alert.report, NAME),
                incident_kind=kind,  # type: ignore[arg-type]  # one of them
                sentence=safe_line(alert.sentence, LINE),
                verdict=safe_line(alert.verdict, WORD),
                confidence=safe_line(alert.confidence, WORD),
                culprits=tuple(map(_culprit, alert.blamed[:MAX_CULPRITS])),
                since=event.started if alert.since is None else alert.since,
                ended=over,
                outcome=safe_line(event.outcome, WORD),
            )


def _culprit(one: Culprit) -> FleetCulprit:
    return FleetCulprit(
        kind=one.kind,
        node=safe_line(one.node, NAME),
        rank=one.rank if one.rank is None or one.rank >= 0 else None,
        reason=safe_line(one.reason, LINE),
    )


def _of_fault(event: AlertEvent, node: str, gpus: Mapping[str, FleetGpu]) -> HardwareFaultEvent:
    alert, over = event.alert, event.ended
    uuid = alert.labels.get("uuid", "")
    return HardwareFaultEvent(
        node=node,
        subject=safe_line(f"{event.key}@{event.started:.0f}", NAME),
        at=event.started if over is None else over,
        state="began" if over is None else "ended",
        component=safe_line(alert.kind, WORD),
        severity=str(alert.severity),
        reason_code=safe_line(alert.verdict, WORD),
        sentence=safe_line(alert.sentence, LINE),
        action=ACTIONS.get(alert.next_steps[0], "") if alert.next_steps else "",
        gpu=gpus.get(uuid, FleetGpu(uuid=safe_line(uuid, NAME))) if uuid else None,
        since=event.started,
        ended=over,
    )


def _of_job(job: JobGoodput, node: str) -> Iterator[AnyEvent]:
    user, script, name = (safe_line(one, NAME) for one in (job.user, job.script, job.name))
    for attempt in job.newest:
        yield _of_attempt(attempt, job, node)
    yield JobEvent(
        node=node,
        subject=_digested("job", job.name, job.user, job.script),
        at=job.at,
        job=name,
        uid=job.uid,
        user=user,
        script=script,
        began=job.began,
        runs=len(job.runs),
        restarts=job.restarts,
        attempts=job.attempts,
        steps_again=job.steps_again,
        gpu_seconds=job.gpu_seconds,
        productive_ratio=job.productive_ratio,
        sentence=safe_line(job.sentence, LINE),
        advice=safe_line(job.advice, LINE),
    )


def _of_attempt(one: AttemptGoodput, job: JobGoodput, node: str) -> AttemptEvent:
    return AttemptEvent(
        node=node,
        subject=safe_line(f"attempt/{one.run}/{one.attempt}", NAME),
        at=job.at if one.ended is None else one.ended,
        job=safe_line(job.name, NAME),
        run=safe_line(one.run, NAME),
        uid=job.uid,
        attempt=max(0, one.attempt),
        user=safe_line(job.user, NAME),
        script=safe_line(job.script, NAME),
        began=max(0.0, one.began),
        ended=one.ended,
        outcome=one.outcome,
        gpu_seconds=one.gpu_seconds,
        sentence=safe_line(one.sentence, LINE),
        stragglers=tuple(safe_line(line, LINE) for line in one.stragglers[:MAX_LINES]),
    )


def _of_checkpoints(state: SeriesState, run: RunState, node: str) -> Iterator[CheckpointEvent]:
    """The last complete checkpoint, and a newer one whose writer has died."""
    if state.last is not None:
        yield _of_checkpoint(state.last, state, run, node)
    if state.newest is not None and state.newest.state is Completeness.INCOMPLETE:
        yield _of_checkpoint(state.newest, state, run, node)


def _of_checkpoint(
    one: KnownCheckpoint, state: SeriesState, run: RunState, node: str
) -> CheckpointEvent:
    return CheckpointEvent(
        node=node,
        subject=_digested(f"checkpoint/{one.state}", run.id, state.folder, state.series),
        at=max(0.0, one.ended),
        job=safe_line(run.name, NAME),
        run=safe_line(run.id, NAME),
        uid=run.uid,
        folder=safe_line(state.folder, NAME),
        series=safe_line(state.series, NAME),
        name=safe_line(one.name, NAME),
        state=str(one.state),
        why=safe_line(one.why, LINE),
        step=one.step,
        began=one.began,
        ended=max(0.0, one.ended),
        size=one.size,
    )


def _of_probe(judged: JudgedSeries, node: str) -> Iterator[ProbeEvent]:
    if not judged.last:
        return
    series, newest = judged.series, judged.last[-1]
    yield ProbeEvent(
        node=node,
        subject=_digested("probe", repr(series)),
        at=newest.at,
        op=safe_line(series.op, WORD),
        bytes=series.bytes,
        device=safe_line(series.device, NAME),
        nodes=safe_line(series.nodes, NAME),
        trend=str(judged.standing),
        runs=judged.runs,
        seconds=newest.seconds,
        bandwidth=newest.busbw,
        change=judged.change,
    )


def _of_node(snapshot: Snapshot, gpus: Mapping[str, FleetGpu]) -> NodeHealthEvent:
    worst = worst_of(snapshot.health)
    ill = {name: str(state) for name, state in worst.items() if state is not HealthState.HEALTHY}
    return NodeHealthEvent(
        node=snapshot.node,
        subject=NODE_HEALTH,
        at=snapshot.at,
        version=safe_line(snapshot.version, WORD),
        gpus=tuple(gpus.values()),
        components=ill,
    )


def _digested(what: str, *parts: str) -> str:
    """A subject for something whose name may be long or private: `job/1f0c…`."""
    text = "\0".join(parts).encode(errors="replace")
    return f"{what}/{hashlib.sha256(text).hexdigest()[:16]}"
