"""What schedulers report: their jobs, nodes that take no jobs, and the agent's state of each configured scheduler.

Times are unix seconds, spans seconds. What a scheduler does not tell is None or empty, never 0.
"""

from enum import StrEnum

from mldebug.core.model import MeasuredData


class JobStanding(StrEnum):
    """The state of a job in words that are the same for all schedulers."""

    RUNNING = "running"
    QUEUED = "queued"
    SUSPENDED = "suspended"  # it has its place, and does not run
    ENDING = "ending"  # its processes are being ended
    OVER = "over"


PRESENT = (JobStanding.RUNNING, JobStanding.QUEUED, JobStanding.SUSPENDED)


class QueueJob(MeasuredData, frozen=True, kw_only=True):
    """A job that a scheduler lists. Of a job array each started task is one; all tasks that have not started are one together."""

    id: str  # as a person names it: 17, 17_3, 17_[4-10%1], namespace/name
    name: str
    state: str  # in the scheduler's own word: RUNNING
    standing: JobStanding
    number: str = ""  # what SLURM_JOB_ID is in its processes; "" where there is none
    user: str = ""
    kind: str = ""  # of Kubernetes: Job, PyTorchJob
    reason: str = ""  # why it waits
    nodes: str = ""  # folded, of one that runs
    partition: str = ""
    submitted: float | None = None
    started: float | None = None
    starts: float | None = None  # the scheduler's estimate, of one that waits
    ends: float | None = None  # when its time limit ends it


class QueueNode(MeasuredData, frozen=True, kw_only=True):
    """A node that takes no jobs, and why."""

    name: str
    state: str  # drained, draining, down, fail
    reason: str = ""


class Queue(MeasuredData, frozen=True, kw_only=True):
    """An answer of a scheduler. `nodes` is None where nodes were not asked for."""

    jobs: tuple[QueueJob, ...] = ()
    nodes: tuple[QueueNode, ...] | None = None
    by: str = ""  # json, text, api
    trouble: str = ""  # what was missing in an answer that is good otherwise
    only_of: str = ""  # the only user whose jobs are listed; "": those of all users


class WatchedState(MeasuredData, frozen=True, kw_only=True):
    """The state of one job that the configuration expects, by the last good answer of its scheduler."""

    name: str
    missing: bool = False
    hidden: bool = False  # none is listed, but other users' jobs are not shown: whether one exists is not known
    jobs: tuple[QueueJob, ...] = ()  # that match, at most `MOST`, those over included
    counts: dict[str, int] = {}  # standing -> how many
    near: tuple[QueueJob, ...] = ()  # run, and are ended by their time limit soon
    blocked: tuple[QueueJob, ...] = ()  # queued, but will not start by themselves
    ends: float | None = None  # the earliest end by time limit among those that run
    waits_since: float | None = None  # the earliest submission among those queued
    sentence: str = ""


class SchedulerState(MeasuredData, frozen=True, kw_only=True):
    """What the agent knows of one configured scheduler. `nodes`: those that take no jobs, from its last good answer about nodes."""

    name: str
    kind: str
    asks: bool = True  # False: another node's agent does
    success_at: float | None = None
    seconds: float | None = None  # of the last question
    by: str = ""
    trouble: str = ""  # why the last question had no good answer
    failing: int = 0  # bad answers in a row
    failures: dict[str, int] = {}  # reason -> how often since the agent's start
    watched: tuple[WatchedState, ...] = ()
    nodes: tuple[QueueNode, ...] = ()
    node_events: tuple[str, ...] = ()  # names of those for which an event is raised


class Orphan(MeasuredData, frozen=True, kw_only=True):
    """A process that still runs although its job is gone, with the GPU memory that it holds."""

    pid: int
    start_ticks: int
    name: str
    uid: int
    user: str
    job: str  # "Slurm job 17", "torchrun launch a1b2"
    why: str  # how it is known that the job is gone
    rank: str = ""
    started_at: float = 0.0
    since: float = 0.0  # since when its job is known to be gone
    gpu_bytes: dict[str, int | None] = {}  # uuid -> bytes; None: held, amount not told


class QueueError(Exception):
    """A scheduler gave no usable answer; `reason`: a short word for metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
