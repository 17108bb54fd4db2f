"""Words and marks that text and HTML reports share.

No mark uses colour alone: each role has a letter.
"""

from typing import NamedTuple

from mldebug.capture.stacks.form import RECORDED
from mldebug.core.model import Confidence, Culprit, Diagnosis, Role, Verdict
from mldebug.core.report_model import Report
from mldebug.core.text import moment


class RoleStyle(NamedTuple):
    """How a role is shown: its letter, a terminal style and what it means."""

    letter: str
    style: str
    meaning: str


ROLES: dict[Role, RoleStyle] = {
    Role.EXITED: RoleStyle("X", "bold magenta", "its process is gone"),
    Role.MISSING: RoleStyle("M", "bold magenta", "it never came"),
    Role.INERT: RoleStyle("I", "bold red", "does nothing, and no other rank can wake it"),
    Role.BUSY: RoleStyle("B", "bold yellow", "it computes"),
    Role.UNCLEAR: RoleStyle("?", "bold", "the evidence does not tell"),
    Role.WAITING: RoleStyle("w", "dim", "waits for other ranks"),
}
"""In the order of suspicion."""

CONFIDENCE: dict[Confidence, str] = {
    Confidence.HIGH: "direct evidence",
    Confidence.MEDIUM: "stacks and counters agree",
    Confidence.LOW: "one sign only",
}


def confidence(report: Report) -> str:
    """A phrase on what the report's confidence rests on."""
    if report.kind == "abnormal_end" and report.diagnosis.confidence is Confidence.MEDIUM:
        return "the order of the exits, or words that name no rank"
    return CONFIDENCE[report.diagnosis.confidence]


_TITLES = {
    Verdict.DATALOADER_STALLED: "Data loader stalled",
    Verdict.GPU_FAULT: "GPU fault",
    Verdict.RANK_BLOCKED_IO: "Rank blocked in I/O",
    Verdict.RANK_WAITING: "Rank stuck",  # not "waiting": that is what its victims do
    Verdict.UNKNOWN: "Cause unknown",
}


NOT_STUCK = "Not stuck"


def headline(diagnosis: Diagnosis) -> str:
    """The title of a diagnosis: that of its verdict, or that the job is not stuck where it was found to go on."""
    return NOT_STUCK if diagnosis.works else title(diagnosis.verdict)


def sentence(diagnosis: Diagnosis) -> str:
    """The summary without the words that already stand above it as the headline."""
    above, _, rest = diagnosis.summary.partition(": ")
    return rest[:1].upper() + rest[1:] if above == headline(diagnosis) else diagnosis.summary


def title(verdict: Verdict) -> str:
    """The title of a verdict: `GPU fault` for `gpu_fault`."""
    return _TITLES.get(verdict) or verdict.value.replace("_", " ").capitalize()


def culprit_name(culprit: Culprit) -> str:
    """Return the culprit's name for a sentence: `rank 3`, `worker of rank 3`, or its kind (`node`, `gpu`, `link`) where it
    is no rank's.
    """
    if culprit.kind == "worker" and culprit.rank is not None:
        return f"worker of rank {culprit.rank}"
    return f"rank {culprit.rank}" if culprit.rank is not None else culprit.kind


def culprit_place(culprit: Culprit) -> str:
    """Where a culprit is: `pid 41003 on gpu-17`, `no process on gpu-17` for a rank that never came, or `on gpu-17` for a
    node, GPU, mount or link; "" where recorded evidence tells neither.
    """
    pid = {"": "", "none": "no process"}.get(culprit_pid(culprit), f"pid {culprit.pid}")
    node = culprit_node(culprit)
    return " ".join(filter(None, (pid, node and f"on {node}")))


def culprit_pid(culprit: Culprit) -> str:
    """The process of a culprit: its number, `none` for a rank that never came, "" where nothing tells it."""
    if culprit.pid:
        return str(culprit.pid)
    never_came = culprit.pid is None and culprit.node and culprit.kind in ("rank", "worker")
    return "none" if never_came else ""


def culprit_node(culprit: Culprit) -> str:
    """The node of a culprit; "" where recorded evidence does not name it."""
    return "" if culprit.node == RECORDED else culprit.node


def end_words(report: Report) -> str:
    """How the incident ended; "" while it is open."""
    return {"open": "", "recovered": "recovered by itself", "ended": "job ended"}[report.state]


def standing(report: Report) -> str:
    """How the incident ended; for an open stall "still open at" with the time of the report; "" for other open reports."""
    if report.state == "open" and report.kind == "stall":
        return f"still open at {moment(report.reported_at)}"
    return end_words(report)
