"""What the captures mean: classes of ranks, verdicts, and who is to blame."""

from enum import StrEnum
from typing import Literal

import msgspec

from mldebug.core.model.base import MeasuredData, ReportData
from mldebug.core.model.capture import RankCapture


class Role(StrEnum):
    """The part that a rank of some class plays in a stall."""

    WAITING = "waiting"  # only other ranks can end its wait: a victim
    INERT = "inert"  # it does nothing and nobody in the job can wake it
    BUSY = "busy"  # it computes
    EXITED = "exited"
    MISSING = "missing"  # it never came
    UNCLEAR = "unclear"  # the evidence does not tell


class Verdict(StrEnum):
    """Why the job stopped. Where two verdicts fit, the one that is listed first here is given."""

    GPU_FAULT = "gpu_fault"
    OUT_OF_MEMORY = "out_of_memory"
    STORAGE_FAULT = "storage_fault"
    NETWORK_FAULT = "network_fault"
    NODE_UNREACHABLE = "node_unreachable"
    RANK_EXITED = "rank_exited"
    RANK_STOPPED = "rank_stopped"
    DATALOADER_STALLED = "dataloader_stalled"
    RANK_BLOCKED_IO = "rank_blocked_io"
    COLLECTIVE_MISMATCH = "collective_mismatch"
    INIT_INCOMPLETE = "init_incomplete"
    RANK_WAITING = "rank_waiting"
    RANK_BUSY = "rank_busy"
    JOB_PAUSED = "job_paused"
    STRAGGLER = "straggler"
    UNKNOWN = "unknown"


class Confidence(StrEnum):
    """How sure a verdict is. High: direct evidence; medium: stacks and counters agree; low: one sign alone."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Classification(MeasuredData, frozen=True, kw_only=True):
    """What one rank is doing, as read from its capture. `name`: a class from the table in
    `mldebug.diagnosis.classify.rank_class`.
    """

    name: (
        str  # collective, device_sync, store, sleep, lock, blocked_io, dataloader, stopped, busy …
    )
    role: Role
    doing: str  # a phrase that follows "rank 3 ": "sleeps in slow_data_loader (train.py:7)"
    operation: str = ""  # all_reduce, broadcast … for waiting ranks
    site: str = ""  # innermost user frame: where in the training script
    thread: str = ""  # of the thread that waits, where it is not the main one
    direct: bool = False  # the kernel or a native stack says so, not a Python frame alone
    mount: str = ""
    path: str = ""
    worker_pid: int | None = None  # the child that is to blame, where it is one
    worker_class: str = ""  # the class of that child: storage, flock, sleep …
    holders: tuple[int, ...] = ()  # ranks of the job that hold the file lock it waits for
    why: tuple[str, ...] = ()  # the facts it rests on, each one short sentence


class ClassifiedRank(MeasuredData, frozen=True, kw_only=True):
    """A rank with what it is doing (`is_`) and its capture; `capture` is None for a rank without a process."""

    rank: int
    node: str
    pid: int | None
    is_: Classification
    capture: RankCapture | None = None


class Culprit(ReportData, frozen=True, kw_only=True):
    """What the waiting ranks wait for: a rank, node, GPU, mount, link or process."""

    kind: Literal["rank", "node", "gpu", "mount", "link", "worker"]
    rank: int | None
    node: str
    pid: int | None
    reason: str


class Finding(MeasuredData, frozen=True, kw_only=True):
    """The conclusion of one detector, a rule that looks for one kind of cause."""

    verdict: Verdict
    culprits: tuple[Culprit, ...]
    confidence: Confidence
    summary: str
    evidence: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


class Diagnosis(ReportData, frozen=True, kw_only=True):
    """The conclusion from all detectors (rules for one cause each): verdict, culprits, and the words that people read."""

    verdict: Verdict
    culprits: tuple[Culprit, ...]
    confidence: Confidence
    summary: str  # one sentence that names who and why
    evidence: tuple[str, ...]
    next_steps: tuple[str, ...]
    works: bool = False  # the job went on while it was looked at: nothing is stuck


class Group(ReportData, frozen=True, kw_only=True):
    """Ranks whose main stack (that of the thread which shows what the process does) is the same."""

    ranks: str  # folded: "0-5,7"
    count: int
    role: Role
    class_: str = msgspec.field(name="class")
    doing: str
    frames: tuple[str, ...]  # labels, innermost first


class TreeNode(ReportData, frozen=True, kw_only=True):
    """One frame in the tree that the stacks of all ranks form, the outermost frame at the root; `ranks`: those whose stack passes
    here.
    """

    frame: str
    ranks: str
    count: int
    children: tuple["TreeNode", ...] = ()


class Judgement(MeasuredData, frozen=True, kw_only=True):
    """Everything that `mldebug.diagnosis.diagnose.diagnose` concludes from the captures of one job: diagnosis, classes, groups,
    stack tree.
    """

    diagnosis: Diagnosis
    ranks: tuple[ClassifiedRank, ...]  # sorted by rank, the lost and missing ones among them
    groups: tuple[Group, ...]  # suspects first, then by size
    group_of: dict[int, int] = {}  # rank -> index into groups
    tree: tuple[TreeNode, ...] = ()
    stalled: bool = False  # somebody is named, or all who were seen wait and nobody moved
    taken_at: float = 0.0  # of the newest capture that it rests on; 0: of none
