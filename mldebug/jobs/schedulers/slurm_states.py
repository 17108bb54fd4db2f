"""Slurm's words for states and reasons (squeue(1), "JOB STATE CODES" and "JOB REASON CODES")."""

import re
from collections.abc import Iterable

from mldebug.jobs.schedulers.model import JobStanding

_STANDINGS = {
    "RUNNING": JobStanding.RUNNING,
    "RESIZING": JobStanding.RUNNING,
    "SIGNALING": JobStanding.RUNNING,
    "STAGE_OUT": JobStanding.RUNNING,
    "CONFIGURING": JobStanding.RUNNING,
    "EXPEDITING": JobStanding.QUEUED,
    "PENDING": JobStanding.QUEUED,
    "REQUEUED": JobStanding.QUEUED,
    "REQUEUE_FED": JobStanding.QUEUED,
    "REQUEUE_HOLD": JobStanding.QUEUED,
    "RESV_DEL_HOLD": JobStanding.QUEUED,
    "SPECIAL_EXIT": JobStanding.QUEUED,
    "SUSPENDED": JobStanding.SUSPENDED,
    "STOPPED": JobStanding.SUSPENDED,
    "COMPLETING": JobStanding.ENDING,
}
_OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", "LAUNCH_FAILED", "RECONFIG_FAIL")  # fmt: skip
# a person has to do something before such a job starts
BLOCKED = frozenset(
    {
        "JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "BadConstraints", "InvalidAccount", "InvalidQOS",
        "AccountNotAllowed", "QOSNotAllowed", "PartitionTimeLimit", "PartitionNodeLimit", "PartitionInactive", "JobLaunchFailure",
        "launch_failed_requeued_held", "job_requeued_in_held_state",
    }
)  # fmt: skip
_OUT = ("down", "drain", "drained", "draining", "fail", "failing", "error", "not_responding", "no_respond")  # fmt: skip
_WORD = re.compile(r"[A-Z_]{1,40}")


def standing_of(states: Iterable[str]) -> tuple[str, JobStanding]:
    """Sum up several Slurm states (of array tasks, or flags): the state to show, and what it means.

    A state of ending (COMPLETING) wins, then PENDING, then the first other state of a job that still exists; if all are states of
    finished jobs, the first of them. Unknown words count as QUEUED.
    """
    words = [state.upper() for state in states if _WORD.fullmatch(state.upper())]
    matches = [(word, _STANDINGS[word]) for word in words if word in _STANDINGS]
    if matches:
        stopping = [match for match in matches if match[1] is JobStanding.ENDING]
        base = [one for one in matches if one[0] == "PENDING"]
        return (stopping or base or matches)[0]
    over = [word for word in words if word in _OVER]
    if over:
        return over[0], JobStanding.OVER
    # a word that this version does not know: Slurm still has the job, and nobody is alarmed for a new word
    return (words[0] if words else "UNKNOWN"), JobStanding.QUEUED


def node_trouble(states: Iterable[str]) -> str:
    """Why a node takes no jobs, from its states as sinfo names them: `drained`, `down`, …; "" where it takes jobs."""
    words = {part for one in states for part in re.split(r"[+, ]", one.lower().strip("*~#!%$@^-"))}
    if words & {"drain", "drained", "draining"}:
        busy = words & {"allocated", "mixed", "completing", "draining", "alloc", "mix"}
        return "draining" if busy else "drained"
    if "not_responding" in words and "down" not in words:
        return "not responding"
    return next((word for word in _OUT if word in words), "")


def blocked(reason: str) -> bool:
    """Whether a job that is pending for this reason stays so until somebody acts."""
    return reason.partition(" ")[0].strip("(),:") in BLOCKED
