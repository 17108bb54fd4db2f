"""Job, PyTorchJob, JobSet and TrainJob objects of the Kubernetes API, read as jobs. Pure.

Fields as the references of batch/v1 Job, kubeflow.org/v1 PyTorchJob, jobset.x-k8s.io/v1alpha2 JobSet and
trainer.kubeflow.org/v1alpha1 TrainJob have them. Nothing here raises for an object that is odd.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from mldebug.jobs.schedulers.model import JobStanding, QueueJob

# plural -> where it is served; the owner's own words, in the order in which they are asked
KINDS: Mapping[str, str] = {
    "jobs": "/apis/batch/v1",
    "pytorchjobs": "/apis/kubeflow.org/v1",
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
    "trainjobs": "/apis/trainer.kubeflow.org/v1alpha1",
}
_NAMES = {"jobs": "Job", "pytorchjobs": "PyTorchJob", "jobsets": "JobSet", "trainjobs": "TrainJob"}
_PARENTS = frozenset(("PyTorchJob", "JobSet", "TrainJob", "MPIJob"))
_OVER = {
    "Complete": "SUCCEEDED", "Completed": "SUCCEEDED", "Succeeded": "SUCCEEDED", "SuccessCriteriaMet": "SUCCEEDED",
    "Failed": "FAILED", "FailureTarget": "FAILED",
}  # fmt: skip


def jobs_of(plural: str, items: Any) -> Iterator[QueueJob]:
    """The jobs in one list of Kubernetes objects; `plural`: their kind, as in the API's path. An object owned by another one of
    these kinds is left out, because its owner is listed.
    """
    for item in items if isinstance(items, list) else ():
        job = _job(plural, item) if isinstance(item, dict) else None
        if job is not None:
            yield job


def _job(plural: str, item: dict[str, Any]) -> QueueJob | None:
    meta, spec, status = (_map(item.get(part)) for part in ("metadata", "spec", "status"))
    name, namespace = _text(meta.get("name")), _text(meta.get("namespace"))
    if not name or _child(meta):
        return None
    conditions = _conditions(status)
    state, standing, reason = _phase(plural, spec, status, conditions)
    started = _moment(status.get("startTime")) or _since(conditions, "Running")
    running = standing is JobStanding.RUNNING
    deadline = _number(_map(spec.get("runPolicy")).get("activeDeadlineSeconds")) or _number(
        spec.get("activeDeadlineSeconds")
    )
    return QueueJob(
        id=f"{namespace}/{name}",
        name=name,
        kind=_NAMES[plural],
        state=state,
        standing=standing,
        user=namespace,
        reason=reason,
        submitted=_moment(meta.get("creationTimestamp")),
        started=started if standing is not JobStanding.QUEUED else None,
        ends=started + deadline if running and started and deadline else None,
    )


def _child(meta: dict[str, Any]) -> bool:
    owners = meta.get("ownerReferences")
    return any(_map(owner).get("kind") in _PARENTS for owner in owners) if isinstance(owners, list) else False  # fmt: skip


def _phase(
    plural: str,
    spec: dict[str, Any],
    status: dict[str, Any],
    conditions: dict[str, dict[str, Any]],
) -> tuple[str, JobStanding, str]:
    """State in the scheduler's word, its standing, and why the job waits."""
    for word, state in _OVER.items():
        if word in conditions:
            return state, JobStanding.OVER, _reason(conditions[word])
    held = spec.get("suspend") is True or _map(spec.get("runPolicy")).get("suspend") is True
    if held or "Suspended" in conditions:
        return "SUSPENDED", JobStanding.QUEUED, "it is suspended"
    if plural == "pytorchjobs":
        return _kubeflow(conditions)
    return _by_pods(_groups(plural, status))


def _kubeflow(conditions: dict[str, dict[str, Any]]) -> tuple[str, JobStanding, str]:
    if "Running" in conditions:
        return "RUNNING", JobStanding.RUNNING, ""
    if "Restarting" in conditions:
        return "RESTARTING", JobStanding.QUEUED, _reason(conditions["Restarting"])
    return "PENDING", JobStanding.QUEUED, "its pods do not run yet"


def _by_pods(groups: list[dict[str, Any]]) -> tuple[str, JobStanding, str]:
    """`ready` is newer than `active`, and left out where it is 0 by some."""
    active = sum(_number(group.get("active")) or 0 for group in groups)
    ready = sum(_number(group.get("ready")) or 0 for group in groups)
    has_ready = any("ready" in group for group in groups)
    if ready or (active and not has_ready):
        return "RUNNING", JobStanding.RUNNING, ""
    return (
        "PENDING",
        JobStanding.QUEUED,
        "its pods are not ready" if active else "it has no pods yet",
    )


def _groups(plural: str, status: dict[str, Any]) -> list[dict[str, Any]]:
    """Where an object counts its pods."""
    if plural == "jobs":
        return [status]
    groups = status.get("replicatedJobsStatus" if plural == "jobsets" else "jobsStatus")
    return [_map(group) for group in groups] if isinstance(groups, list) else []


def _conditions(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those that are true, by type."""
    all_ = status.get("conditions")
    listed = [_map(one) for one in all_] if isinstance(all_, list) else []
    return {_text(one.get("type")): one for one in listed if one.get("status") == "True"}


def _reason(condition: dict[str, Any]) -> str:
    return _text(condition.get("message")) or _text(condition.get("reason"))


def _since(conditions: dict[str, dict[str, Any]], word: str) -> float | None:
    return _moment(conditions.get(word, {}).get("lastTransitionTime"))


def _moment(value: Any) -> float | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(value: Any) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if good else None


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
