"""`squeue --json` and `sinfo --json` of every Slurm that has them: 21.08 to 25.05. Pure.

The same field is a number, null, or `{"set": bool, "infinite": bool, "number": N}`; a state is a word or a list of words.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from mldebug.jobs.schedulers.model import JobStanding, Queue, QueueError, QueueJob, QueueNode
from mldebug.jobs.schedulers.slurm_states import node_trouble, standing_of

NO_TIME = 4_102_444_800  # of the year 2100: Slurm's "never" is beyond it


class _Job(msgspec.Struct):
    """What is read of a job; all else is skipped without being built."""

    job_id: Any = None
    name: Any = ""
    job_state: Any = ""
    user_name: Any = ""
    state_reason: Any = ""
    state_description: Any = ""
    nodes: Any = ""
    partition: Any = ""
    array_job_id: Any = None
    array_task_id: Any = None
    array_task_string: Any = ""
    submit_time: Any = None
    start_time: Any = None
    end_time: Any = None
    time_limit: Any = None


class _Jobs(msgspec.Struct):
    jobs: list[_Job]
    errors: Any = None


class _Nodes(msgspec.Struct):
    nodes: list[dict[str, Any]] | None = None
    sinfo: list[dict[str, Any]] | None = None
    errors: Any = None


def read_jobs(data: bytes) -> tuple[QueueJob, ...]:
    """The jobs in the output of `squeue --json`. Raises QueueError where it cannot be parsed, or holds only errors."""
    answer = _decode(data, _Jobs)
    if answer.errors and not answer.jobs:
        raise QueueError("refused", f"squeue says: {_errors(answer.errors)}")
    return tuple(job for one in answer.jobs if (job := _job(one)) is not None)


def read_nodes(data: bytes) -> tuple[QueueNode, ...]:
    """The nodes that take no jobs, from the output of `sinfo --json` or `scontrol show node
    --json`. Raises QueueError for any other output.
    """
    answer = _decode(data, _Nodes)
    if answer.nodes is None and answer.sinfo is None:
        raise QueueError("unreadable", f"sinfo lists no nodes: {_errors(answer.errors)}")
    found = {one.name: one for one in _nodes(answer)}
    return tuple(found.values())


def parse_queue(jobs: bytes) -> Queue:
    """The jobs in decoded output of `squeue --json`, as an answer without nodes."""
    return Queue(jobs=read_jobs(jobs), by="json")


def number(value: Any) -> float | None:
    """A number in any of the forms in which Slurm writes one; None where it is not set, infinite or no number."""
    if isinstance(value, dict):
        if value.get("infinite") is True or value.get("set") is False:
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def moment(value: Any) -> float | None:
    """A time of Slurm in unix seconds; None for "unknown" and "never"."""
    seconds = number(value)
    return seconds if seconds is not None and 0 < seconds < NO_TIME else None


def _decode(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data.decode(errors="replace"), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise QueueError("unreadable", f"the JSON is not as expected: {error}") from None


def _job(raw: _Job) -> QueueJob | None:
    job_id = number(raw.job_id)
    if job_id is None:
        return None
    state, standing = standing_of(_words(raw.job_state))
    waits = standing is JobStanding.QUEUED
    limited = number(raw.time_limit) is not None
    description, reason = _text(raw.state_description), _text(raw.state_reason)
    return QueueJob(
        id=_array_id(raw, int(job_id)),
        number=str(int(job_id)),
        name=_text(raw.name),
        state=state,
        standing=standing,
        user=_text(raw.user_name),
        reason=(f"{reason}: {description}" if description and reason not in ("", "None") else description or reason) if waits else "",
        nodes="" if waits else _text(raw.nodes),
        partition=_text(raw.partition),
        submitted=moment(raw.submit_time),
        started=None if waits else moment(raw.start_time),
        starts=moment(raw.start_time) if waits else None,
        ends=moment(raw.end_time) if standing is JobStanding.RUNNING and limited else None,
    )  # fmt: skip


def _array_id(raw: _Job, own: int) -> str:
    array, task, waiting = number(raw.array_job_id), number(raw.array_task_id), _text(raw.array_task_string)  # fmt: skip
    if not array:
        return str(own)
    if waiting:
        return f"{int(array)}_[{waiting}]"
    return f"{int(array)}_{int(task)}" if task is not None else str(own)


def _nodes(answer: _Nodes) -> Iterator[QueueNode]:
    for node in answer.nodes or ():
        states = [*_words(node.get("state")), *_words(node.get("state_flags"))]
        if trouble := node_trouble(states):
            yield QueueNode(name=_text(node.get("name")), state=trouble, reason=_text(node.get("reason")))  # fmt: skip
    for group in answer.sinfo or ():
        trouble = node_trouble(_words(_inside(group.get("node")).get("state")))
        reason = group.get("reason")
        reason_text = _text(_inside(reason).get("description")) if isinstance(reason, dict) else _text(reason)  # fmt: skip
        names = _inside(group.get("nodes")).get("nodes")
        for name in names if trouble and isinstance(names, list) else ():
            yield QueueNode(name=_text(name), state=trouble, reason=reason_text)


def _inside(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(value: Any) -> list[str]:
    words = value if isinstance(value, list) else [value]
    return [word for word in words if isinstance(word, str)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _errors(errors: Any) -> str:
    return str(errors)[:200] if errors else "nothing"
