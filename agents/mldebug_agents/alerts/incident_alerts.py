"""The alert that is made from an incident. Pure."""

from mldebug.alerts.model import Alert, Severity
from mldebug.core.model import Culprit, Job, Judgement
from mldebug.incidents.incident import Incident

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
        verdict=str(diagnosis.verdict),
        confidence=diagnosis.confidence,
        report=incident.id,
        uid=uid,
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
