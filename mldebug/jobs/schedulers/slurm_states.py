"""Slurm's words for states and reasons (squeue(1), "JOB STATE CODES" and "JOB REASON CODES")."""

import re
from collections.abc import Iterable

from mldebug.jobs.schedulers.model import Standing

_STANDINGS = {
    "RUNNING": Standing.RUNNING,
    "RESIZING": Standing.RUNNING,
    "SIGNALING": Standing.RUNNING,
    "STAGE_OUT": Standing.RUNNING,
    "CONFIGURING": Standing.RUNNING,
    "EXPEDITING": Standing.QUEUED,
    "PENDING": Standing.QUEUED,
    "REQUEUED": Standing.QUEUED,
    "REQUEUE_FED": Standing.QUEUED,
    "REQUEUE_HOLD": Standing.QUEUED,
    "RESV_DEL_HOLD": Standing.QUEUED,
    "SPECIAL_EXIT": Standing.QUEUED,
    "SUSPENDED": Standing.SUSPENDED,
    "STOPPED": Standing.SUSPENDED,
    "COMPLETING": Standing.ENDING,
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


def standing_of(states: Iterable[str]) -> tuple[str, Standing]:
    """The word to show, and what it means. Ending wins over running, any other word over "over"."""
    words = [one.upper() for one in states if _WORD.fullmatch(one.upper())]
    known = [(word, _STANDINGS[word]) for word in words if word in _STANDINGS]
    if known:
        ending = [one for one in known if one[1] is Standing.ENDING]
        base = [one for one in known if one[0] == "PENDING"]
        return (ending or base or known)[0]
    over = [word for word in words if word in _OVER]
    if over:
        return over[0], Standing.OVER
    # a word that this version does not know: Slurm still has the job, and nobody is alarmed for a new word
    return (words[0] if words else "UNKNOWN"), Standing.QUEUED


def node_trouble(states: Iterable[str]) -> str:
    """Why a node takes no jobs, in sinfo's words; "" where it does."""
    words = {part for one in states for part in re.split(r"[+, ]", one.lower().strip("*~#!%$@^-"))}
    if words & {"drain", "drained", "draining"}:
        busy = words & {"allocated", "mixed", "completing", "draining", "alloc", "mix"}
        return "draining" if busy else "drained"
    if "not_responding" in words and "down" not in words:
        return "not responding"
    return next((word for word in _OUT if word in words), "")


def blocked(reason: str) -> bool:
    """Does a job with this reason wait for a person?"""
    return reason.partition(" ")[0].strip("(),:") in BLOCKED
