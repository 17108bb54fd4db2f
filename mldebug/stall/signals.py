"""The input and output of the stall watch: a `RunLook` is one reading of one run on all nodes that answered, a `StallDecision` says what
to do about it.

Progress is evidence that the job moved. Activity (CPU, switches, I/O, GPU) shows what a rank does, not that the job moves; the one
exception are bytes written as fast as a checkpoint (`mldebug.stall.checkpoint_writes`). Times are monotonic seconds of
one clock; `switches`, `io_bytes`, `written_bytes` and `thread_written_bytes` are counters since the rank started.
"""

from enum import StrEnum

import msgspec

from mldebug.core.model import MeasuredData, Role

COLLECTIVE_TIMEOUTS = {"nccl": 600.0, "gloo": 1800.0}
"""Seconds after which torch itself ends a collective, where nobody changed it."""


class ProgressKind(StrEnum):
    """The kinds of evidence that a job moved, the strongest first."""

    STEP = "step"
    RECORD = "record"  # a training record in the job's log
    HEARTBEAT = "heartbeat"
    RAS = "ras"  # launches of collectives, as NCCL counts them: begins the clock anew, and is none itself
    LOG_GROWTH = "log_growth"  # any line of any thread: the weakest


STEPS = (ProgressKind.STEP, ProgressKind.RECORD, ProgressKind.HEARTBEAT)
"""The kinds whose gaps are the run's own rhythm. Launches are none: those of a CUDA graph are not counted."""


class Progress(MeasuredData, frozen=True, kw_only=True):
    """The last state of one progress signal, repeated in every look. A `value` that changed means that the job moved."""

    kind: ProgressKind
    value: float  # step number, count or bytes
    at: float  # when that value was reached
    events: int = 1  # how many records or beats came since the look before
    until: float | None = (
        None  # the signal is another node's, reported up to then; None: this node's
    )
    redrawn: bool = False  # its steps may be older: by the pace of the loop they took little of the silence before it


class RankLook(MeasuredData, frozen=True, kw_only=True):
    """One reading of one rank. Role, class and frames are set only where a stack sample was taken."""

    rank: int
    role: Role | None = None
    class_name: str = ""  # mldebug.diagnosis.classify.tables: collective, init, sleep …
    operation: str = ""  # what a waiting rank waits in: all_reduce
    doing: str = ""  # follows "rank 3 ": "sleeps in slow_data_loader (train.py:7)"
    frames_signature: str | None = None  # equal for equal Python frames of the main thread
    cpu_ratio: float = 0.0  # main thread, since the look before
    process_cpu_ratio: float = 0.0  # all threads together
    children_cpu_ratio: float = 0.0  # living descendants
    delay_ratio: float = 0.0  # share of the time in which its main thread was ready and no CPU free
    children_delay_ratio: float = 0.0  # the same of its descendants, added up
    children_io_rate: float = 0.0  # bytes a second that they read and write
    children_blocked: bool = False  # one of them stood in state D since the look before
    switches: int = 0  # voluntary context switches of the main thread
    io_bytes: int = 0  # read and written by the process
    written_bytes: int = 0  # by the process, with write(2); 0: nothing, or not readable
    thread_written_bytes: int = 0  # the same by its main thread alone
    state: str = ""
    wchan: str = ""
    compiling: bool = False  # has a compiler among its children: ptxas, cc1plus
    phase: str | None = None  # as the hook in its process reports it
    device_progress: bool | None = None  # its GPU computes or moves memory; None: not readable


class ActivitySum(msgspec.Struct):
    """CPU seconds and bytes that a rank used since its counters were last compared. They are summed up because work comes in
    bursts.
    """

    main: float = 0.0  # CPU seconds
    process: float = 0.0
    children: float = 0.0
    children_bytes: float = 0.0
    delayed: float = 0.0  # seconds in which the main thread was ready to run and no CPU was free
    children_delayed: float = 0.0

    def add(self, look: RankLook, span: float) -> None:
        """Add one reading. `span`: seconds since the reading before."""
        self.main += look.cpu_ratio * span
        self.process += look.process_cpu_ratio * span
        self.children += look.children_cpu_ratio * span
        self.children_bytes += look.children_io_rate * span
        self.delayed += look.delay_ratio * span
        self.children_delayed += look.children_delay_ratio * span


class RunLook(MeasuredData, frozen=True, kw_only=True):
    """One reading of one run. A new `attempt` (start of the job) resets everything but the learned gaps between signs of
    progress.
    """

    at: float
    run: str = ""
    attempt: int = 0
    ranks: tuple[RankLook, ...] = ()
    exited: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()  # that never came
    elsewhere: bool = False  # the run has ranks on other nodes, which this agent does not watch
    progress: tuple[Progress, ...] = ()
    started: bool = False  # this attempt has made its first step
    evaluates: bool = False  # it has not, and is in the midst of an evaluation that it counts
    backend: str = "nccl"
    collective_timeout: float | None = None  # as the hook reports it
    checkpoint_grew_at: float | None = (
        None  # when a checkpoint of the job's own processes last grew on disk
    )

    @property
    def living(self) -> tuple[int, ...]:
        """The numbers of the ranks on this node that still run."""
        gone = (Role.EXITED, Role.MISSING)
        return tuple(
            rank.rank
            for rank in self.ranks
            if rank.role not in gone and rank.rank not in self.exited
        )

    @property
    def evidence_lives(self) -> float:
        """Seconds for which a collective may hang before torch ends the job, and the evidence with it: as the hook reports it,
        else torch's default for the backend.
        """
        limit = self.collective_timeout
        return limit if limit and limit > 0 else COLLECTIVE_TIMEOUTS.get(self.backend, 600.0)


class Stage(StrEnum):
    """How far the suspicion of a stall has come."""

    WATCHING = "watching"  # the job moves, or is too young to say
    QUIET = "quiet"  # longer without progress than usual, too short to suspect
    SUSPECT = "suspect"  # half the timeout is over: stacks are sampled
    CONFIRMED = "confirmed"  # a stall, captured; nobody to blame yet
    BLAMED = "blamed"  # an incident is open
    RECOVERED = "recovered"  # an open incident ended by itself, just now
    ENDED = "ended"  # the job, or the attempt that was stalled, is over


class StallDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent has to do after one reading of a run, and a sentence that says why."""

    stage: Stage
    sentence: str
    sample: bool = False  # take a non-blocking stack sample of every rank before the next look
    capture: bool = False  # take a capture of every rank and keep it
    open: bool = False  # an incident opens with this look
    resumed: bool = False  # an earlier agent opened this stall, and may have captured it
    key: str = ""  # of the open incident: run, attempt, last step
    suspects: tuple[int, ...] = ()  # ranks that do not wait
    quiet: float = 0.0  # seconds without progress, as far as this agent could watch them
    usual_gap: float = 0.0  # seconds between two signs of progress; 0: not known
    stalled_since: float | None = None
    timeout: float = 0.0
    why_timeout: str = ""
    collective_timeout: float | None = None  # as the hook reports it
    next_look: float = 5.0  # seconds
