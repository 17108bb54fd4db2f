"""The report, `report.json`, as it is written: one struct for each object in it. The captures and verdicts that it is made from are in `model`."""

from enum import StrEnum
from typing import Literal

import msgspec

from mldebug.core.model import Diagnosis, Group, ReportData, Role, TreeNode

REPORT_SCHEMA = "mldebug.report/1"
ReportKind = Literal["stall", "abnormal_end", "slowdown", "manual"]
ReportTrigger = Literal["stall", "exit", "slowdown", "manual", "api", "alert"]
IncidentState = Literal["open", "recovered", "ended"]


class ThreadView(ReportData, frozen=True, kw_only=True):
    """A thread of a rank, as a report shows it: its name and its stack."""

    name: str
    tid: int
    state: str  # "S hrtimer_nanosleep", "active+gil" …
    frames: tuple[str, ...]  # labels, innermost first


class SourceView(ReportData, frozen=True, kw_only=True):
    """The source lines around the one at which a culprit stands. `first`: the number of the first of them."""

    path: str
    line: int
    first: int
    lines: tuple[str, ...]


class RankView(ReportData, frozen=True, kw_only=True):
    """One row of a report's rank table. Threads and log lines are given only for culprits and for one rank of each group."""

    rank: int
    node: str
    pid: int | None
    class_: str = msgspec.field(name="class")
    role: Role
    state: str  # kernel state and wchan of the main thread: "S futex_do_wait"
    cpu_ratio: float | None
    group: int | None  # index into Report.groups
    last_collective: str
    doing: str
    culprit: bool
    threads: tuple[ThreadView, ...] = ()
    log: tuple[str, ...] = ()
    log_source: str = ""  # where these lines come from: a file, "its own output", "the job's log"
    # what its hook said when it was captured; null and "" without one
    step: int | None = None
    step_age: float | None = None  # seconds since it reached that step
    phase: str = ""  # checkpoint_save, data_wait, evaluate …; "" for none
    phase_age: float | None = None
    # where its tracer saw it last; "" and null without one. The lines only of those that are told in full
    last_call: str = ""
    last_call_age: float | None = None  # seconds before the capture, or before its end was judged
    trace: tuple[str, ...] = ()
    source: SourceView | None = None  # of a culprit, where its file could be read


class GpuView(ReportData, frozen=True, kw_only=True):
    """The GPU of one rank while the job stood still; null for each value that was not read."""

    rank: int
    node: str
    gpu: int  # its number on the node
    sure: (
        bool  # false: a convention alone says that it is this rank's, or the rank has a slice of it
    )
    state: str  # of the fingerprint: collective_wait, never_arrived …; "": nobody watched it
    looks: int
    seconds: float  # from the first to the last of them
    least_busy_ratio: float | None  # of the time with a kernel, of the least busy look
    most_busy_ratio: float | None
    memory_traffic: bool | None  # in any of them
    power_watts: float | None  # at the last
    usual_watts: float | None  # at work, in this run
    sm_active_ratio: float | None  # by the hardware's own counters, at the last full read
    processes: int  # on it, as the driver counted; 0: not told


class JobView(ReportData, frozen=True, kw_only=True):
    """The job that a report is about."""

    id: str
    name: str
    attempt: int
    world_size: int
    launcher: str
    nodes: tuple[str, ...]
    user: str
    started_at: str
    step: int | None = None  # the last step that was known
    hooked: int | None = None  # ranks with the hook; 0: an untouched job; null: nobody knows


class NodeView(ReportData, frozen=True, kw_only=True):
    """A node in a report: whether it answered, and why not."""

    node: str
    ranks: str
    taken_at: str  # by its own clock, which is shown and never compared; "": no capture
    duration_seconds: float
    state: str = "answered"  # down, silent, unable, refused: see mldebug.core.model.QueriedNode
    reason: str = ""  # why there is no capture
    last_seen: str = ""  # when it was heard of before, by the clock of whoever asked


class Stall(ReportData, frozen=True, kw_only=True):
    """After how many seconds the job counted as stalled, and why that many; the fields are null for a capture taken by hand."""

    timeout_seconds: float | None
    why: str
    # after how many seconds in a collective PyTorch ends the job, as its hook reports; null: not known
    collective_timeout_seconds: float | None = None


class TimelineEvent(ReportData, frozen=True, kw_only=True):
    """Something that happened during an incident, with its time; a report lists events in order of time."""

    at: str
    what: str
    source: str = ""  # who says so, where it was not seen by the agent itself


class CaptureView(ReportData, frozen=True, kw_only=True):
    """One capture of evidence in a report."""

    at: str
    duration_seconds: float
    ranks: int
    note: str


class Change(StrEnum):
    """What changed for one rank between the first capture and the later one."""

    UNCHANGED = "unchanged"
    ACTIVE = "active"  # the same frames, and its counters move
    MOVED = "moved"
    GONE = "gone"
    CAME = "came"
    REPLACED = "replaced"  # the rank is another process now
    UNSEEN = "unseen"  # without a stack in one of them


class ChangeView(ReportData, frozen=True, kw_only=True):
    """Ranks for which the same changed between two captures. `before` and `after`: the frame in which they stood, for ranks that
    moved.
    """

    ranks: str  # folded: "0-1,3"
    count: int
    change: Change
    before: str
    after: str
    words: str  # "rank 2 moved from strike (train.py:34) to backward (train.py:80)"


class Comparison(ReportData, frozen=True, kw_only=True):
    """Which ranks moved between the first and the newest capture of an incident."""

    seconds: float  # between them
    summary: str  # one sentence: "nothing moved"
    changes: tuple[ChangeView, ...]


class GapView(ReportData, frozen=True, kw_only=True):
    """Evidence that a report lacks, and why."""

    what: str
    reason: str
    rank: int | None
    pid: int | None
    way_out: str


class GoodputView(ReportData, frozen=True, kw_only=True):
    """Where the GPU time of the attempt that ended went, and that of its whole job on this node. Seconds are those of GPUs, by use."""

    attempt: int
    outcome: str  # failed, well, unknown; "": it had processes when the report was written
    gpu_seconds: dict[str, float]
    productive_ratio: float
    sentence: str
    stragglers: tuple[str, ...]  # ranks that the others waited for
    job_attempts: int
    job_restarts: int
    job_gpu_seconds: dict[str, float]
    job_sentence: str
    advice: str  # on the interval of checkpoints; "" for none


class Report(ReportData, frozen=True, kw_only=True):
    """An incident as it is written to report.json. Times are RFC 3339 in UTC."""

    schema: str
    id: str  # sorts by time
    node: str
    versions: dict[str, str]
    job: JobView
    kind: ReportKind
    trigger: ReportTrigger
    state: IncidentState
    stalled_since: str | None
    detected_at: str
    reported_at: str
    stall: Stall
    timeline: tuple[TimelineEvent, ...]
    captures: tuple[CaptureView, ...]
    diagnosis: Diagnosis
    groups: tuple[Group, ...]
    tree: tuple[TreeNode, ...]
    ranks: tuple[RankView, ...]
    nodes: tuple[NodeView, ...]
    remarks: tuple[str, ...]
    gaps: tuple[GapView, ...]
    # what the kernel and the driver said, beside the evidence; reports of earlier versions lack it
    hardware: tuple[str, ...] = ()
    # version of the catalogue that says what the Xids above mean; "" without any, and in reports of earlier versions
    xid_catalogue: str = ""
    gpus: tuple[GpuView, ...] = ()  # by rank; reports of earlier versions lack it
    # of the end of an attempt; null for other reports, where nobody accounted for it, and in reports of earlier versions
    goodput: GoodputView | None = None
    comparison: Comparison | None = None  # null: there was one capture, or none
