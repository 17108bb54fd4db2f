"""`squeue` and `sinfo` as text, for a Slurm without JSON. Pure.

Each record begins with a mark that was drawn for this one call, and what a person chose stands last in it: a name with
bars and newlines is read as it is, and cannot pretend to be another job. Asked with `TZ=UTC` and `LC_ALL=C`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from mldebug.jobs.schedulers.model import JobStanding, QueueError, QueueJob, QueueNode
from mldebug.jobs.schedulers.slurm_states import node_trouble, standing_of

_JOB = ("%A", "%i", "%u", "%T", "%S", "%e", "%l", "%V", "%P", "%N", "%r", "%j")
_NODE = ("%N", "%T", "%E")
_UNLIMITED = ("", "UNLIMITED", "N/A", "NOT_SET", "INVALID", "Partition_Limit")


def job_format(mark: str) -> str:
    """The value of `squeue --format`: fields separated by bars, each line beginning with `mark`."""
    return mark + "|".join(_JOB)


def node_format(mark: str) -> str:
    """The value of `sinfo --Node --format`: fields separated by bars (node names have none), each line beginning with `mark`."""
    return mark + "|".join(_NODE)


def read_jobs(text: str, mark: str) -> tuple[QueueJob, ...]:
    """The jobs in the output of `squeue --format`. Raises QueueError where anything else was printed."""
    return tuple(_job(fields) for fields in _records(text, mark, len(_JOB)))


def read_nodes(text: str, mark: str) -> tuple[QueueNode, ...]:
    """Nodes that take no jobs, from the output of `sinfo`; a node in several partitions stands there several times."""
    found = {}
    for name, state, reason in _records(text, mark, len(_NODE)):
        if trouble := node_trouble([state]):
            shown = "" if reason in ("none", "N/A") else reason
            found[name] = QueueNode(name=name, state=trouble, reason=shown)
    return tuple(found.values())


def moment(text: str) -> float | None:
    """Unix seconds of a time as Slurm prints it in UTC, `2026-11-24T01:17:01`; None for N/A, NONE, Unknown."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _records(text: str, mark: str, count: int) -> Iterator[list[str]]:
    before, *records = text.split(mark)
    if before.strip():
        raise QueueError("unreadable", "something else was printed than was asked for")
    for record in records:
        fields = record.removesuffix("\n").split("|", count - 1)
        if len(fields) != count:
            raise QueueError("unreadable", f"a record has {len(fields)} of {count} fields")
        yield fields


def _job(fields: list[str]) -> QueueJob:
    number, name_id, user, word, start, end, limit, submit, partition, nodes, reason, name = fields
    state, standing = standing_of([word])
    waits = standing is JobStanding.QUEUED
    return QueueJob(
        id=name_id,
        number=number,
        name=name,
        state=state,
        standing=standing,
        user=user,
        reason=reason if waits and reason != "None" else "",
        nodes="" if waits else nodes,
        partition=partition,
        submitted=moment(submit),
        started=None if waits else moment(start),
        starts=moment(start) if waits else None,
        ends=moment(end) if standing is JobStanding.RUNNING and limit not in _UNLIMITED else None,
    )
