"""What is known of the exits of one attempt: their order, and the last lines of ranks, launcher and kernel."""

import signal

import msgspec

from mldebug.core.model import (
    Fault,
    FlightRecord,
    HookState,
    Job,
    LogTail,
    MeasuredData,
    MemoryFailure,
    RankIdentity,
    TraceTail,
)
from mldebug.diagnosis.exits.cuda_memory import DeviceMemory

STOP_SIGNALS = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
)
"""Signals that ask a process to end."""

FAULTS = frozenset(
    {
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGXCPU,
        signal.SIGXFSZ,
    }
)
"""Signals that the kernel gives a process for what it does itself; all others somebody sends it."""  # fmt: skip

_SIGNALS = {one.value: one.name for one in signal.Signals}


class RankExit(MeasuredData, frozen=True, kw_only=True):
    """The exit of one rank.

    `moment` orders exits: the lower number came first, equal ones came together; None where it is
    not known.
    """

    rank: int
    pid: int
    at: float = 0.0  # unix; 0.0: nobody saw it
    moment: int | None = None
    status: int | None = None  # a wait(2) status word
    source: str = "exit unknown"  # where the status comes from


class Accusation(MeasuredData, frozen=True, kw_only=True):
    """The ranks, processes, addresses or calls that a victim's error message names as the cause.

    Rank numbers are those of the message's process group, which may be a part of the job.
    """

    ranks: tuple[int, ...] = ()
    did: str = ""  # what they did, or did not: "did not come to the monitored barrier"
    speaker: int | None = None  # the number by which it speaks of itself
    quoted: str = ""  # the error of theirs that the words quote
    calls: dict[int, str] = {}  # rank -> what it called, where the words tell this of both sides
    pids: tuple[int, ...] = ()
    addresses: tuple[str, ...] = ()


class RankError(MeasuredData, frozen=True, kw_only=True):
    """The last error of a rank, from its output or its error file."""

    error: str  # "ValueError: bad shard 7"
    lines: tuple[str, ...] = ()
    source: str = ""  # "the job's log"
    blames_peer: bool = False  # it only means that another rank did not answer
    unclear: bool = False  # it does not say whose failure it is
    memory: DeviceMemory | None = None  # the figures of a lack of device memory
    caught: bool = False  # the program wrote more after it: it may have lived on
    alone: bool = False  # the only traceback in that text
    copies: int = 1  # lines of that text that end with the same error
    accuses: Accusation | None = None  # whom it names, where it does

    @property
    def kind(self) -> str:
        """The exception's type, for example `ValueError`, without its message."""
        return self.error.partition(":")[0]


class LauncherFailure(MeasuredData, frozen=True, kw_only=True):
    """The statement of a launcher that one rank failed."""

    pid: int | None = None
    local_rank: int | None = None
    rank: int | None = None
    status: int | None = None


class LauncherWords(MeasuredData, frozen=True, kw_only=True):
    """The messages of a launcher or scheduler about the end of a job, from the job's log."""

    failures: tuple[LauncherFailure, ...] = ()  # as first observed, one for each attempt
    followers: tuple[LauncherFailure, ...] = ()  # ended after it had begun to end the others
    ended: tuple[int, ...] = ()  # pids that it ended itself
    outside: str = ""  # why it ended the job without a failure: "torchrun received signal 15"
    out_of_memory: str = ""  # a line about an OOM kill
    monitor: str = ""  # a line by which a monitor of heartbeats says that it ends a rank
    errors: dict[int, RankError] = {}  # rank -> the error in its error file
    # lines of mpirun, srun and hydra that a report cites; "said" on disk
    cited: tuple[str, ...] = msgspec.field(default=(), name="said")


class KernelDeath(MeasuredData, frozen=True, kw_only=True):
    """A line of the kernel log about the end of a process."""

    pid: int
    kind: str  # out_of_memory, crash
    text: str
    at: float = 0.0  # seconds of the kernel's own clock


class QuotaFill(MeasuredData, frozen=True, kw_only=True):
    """How much of a quota of the kernel was used when a run had ended. A limit of 0: there is none."""

    whose: str  # "user alice", "group 100", "project 7"
    used: int = 0  # bytes
    limit: int = 0
    inodes: int = 0
    inodes_limit: int = 0

    @property
    def share(self) -> float:
        """The larger one of the shares of bytes and inodes that are used; 0 without a limit."""
        pairs = ((self.used, self.limit), (self.inodes, self.inodes_limit))
        return max((used / limit for used, limit in pairs if limit), default=0.0)


class FilesystemFill(MeasuredData, frozen=True, kw_only=True):
    """How full a filesystem of the job was, at the last look before its end."""

    mount: str
    line: str  # "nfs01:/data: 99.9% used, 12 MiB left"
    used_ratio: float = 0.0
    inodes_used_ratio: float = 0.0
    age: float = 0.0  # seconds between that look and the end's evidence
    fstype: str = ""  # "tmpfs"
    writer: str = ""  # who writes most to it, in words: "rank 0 of train.py writes 1.2 GiB/s to it"
    left_after: float | None = None  # bytes, some seconds after the end; None: not known
    inodes_left_after: int | None = None  # likewise
    quotas: tuple[
        QuotaFill, ...
    ] = ()  # of the job's user, his group, and the projects of the job's folders, some seconds after the end


class CheckpointsAtExit(MeasuredData, frozen=True, kw_only=True):
    """One series of a run's checkpoints as it lay on disk after the run's end. Sizes are in bytes."""

    folder: str  # as the ranks see it
    last: str = ""  # the newest whole one; "": there is none, or it is not known
    last_bytes: int = 0
    cut: str = ""  # a newer one that its writer did not finish; "": there is none
    cut_bytes: int = 0
    held: int = 0  # checkpoints that are there
    held_bytes: int = 0


class KnownExits(MeasuredData, frozen=True, kw_only=True):
    """The ranks of a run on this node, and those of them that have ended."""

    identities: tuple[RankIdentity, ...] = ()
    exits: tuple[RankExit, ...] = ()
    failing: Job | None = (
        None  # without its ranks; of whom one has failed and nothing is judged yet
    )


class AttemptExit(MeasuredData, frozen=True, kw_only=True):
    """All that is known of how one attempt (one start of a job) ended on this node."""

    job: Job
    identities: tuple[RankIdentity, ...] = ()  # all ranks that were on this node, sorted
    exits: tuple[RankExit, ...] = ()  # in order
    living: tuple[int, ...] = ()  # ranks that are still there
    launcher_pid: int | None = None
    step: int | None = None  # the last one known
    # rank -> the last record of its hook; "said" on disk
    hooks: dict[int, HookState] = msgspec.field(default_factory=dict, name="said")
    flights: dict[int, FlightRecord] = {}  # rank -> what PyTorch dumped when it timed out
    traces: dict[int, TraceTail] = {}  # rank -> what its tracer wrote last
    memory: dict[int, MemoryFailure] = {}  # rank -> who held its GPU when that ran out
    launcher_gone: bool = False
    launcher_moment: int | None = None
    launcher_status: int | None = None
    words: LauncherWords = LauncherWords()
    errors: dict[int, RankError] = {}  # rank -> its last error
    shared_error: RankError | None = None  # an error in the job's log that names no rank
    deaths: tuple[KernelDeath, ...] = ()
    children: dict[int, int] = {}  # pid -> the rank that it was a child of
    oom_kills: int | None = None  # in the job's cgroup since it was first seen; None: not readable
    kernel_readable: bool = False
    logs: dict[int, LogTail] = {}  # rank -> last lines that are its own
    log: LogTail | None = None  # of the job, where ranks cannot be told apart
    log_path: str = ""  # a file that holds the job's output
    output_read: bool = (
        False  # all that it wrote since it was found; what is not there was not written
    )
    log_paths: dict[int, str] = {}  # rank -> the file that holds its own
    filesystems: tuple[FilesystemFill, ...] = ()  # that the job uses
    checkpoints: tuple[CheckpointsAtExit, ...] = ()  # looked at where an error tells of no space
    told_to_stop: str = ""  # "caught SIGTERM, saving": written by a rank near its end
    faults: tuple[Fault, ...] = ()  # of its GPUs, and kills for memory
    gaps: tuple[str, ...] = ()


def exit_code(status: int | None) -> int | None:
    """The code that a process gave to exit(), from its wait(2) status; None where a signal ended it, or the status is not known."""
    return None if status is None or status & 0x7F else status >> 8 & 0xFF


def exit_signal(status: int | None) -> int | None:
    """The number of the signal that ended a process, from its wait(2) status; None where none did."""
    return None if status is None or not status & 0x7F else status & 0x7F


def was_asked(status: int | None) -> bool:
    """Whether the process ended because a signal asked it to (such as SIGTERM), or with the exit code that stands for such a signal (128 + number)."""
    code, number = exit_code(status), exit_signal(status)
    return number in STOP_SIGNALS or (code is not None and code - 128 in STOP_SIGNALS)


def was_sent(status: int | None) -> bool:
    """Whether the process ended by a signal that is no fault of its own (SIGQUIT of a parent, SIGPIPE, a timer), or by SIGABRT, which watchdogs raise; or with the
    exit code that stands for such a signal. False for SIGKILL and for signals that ask.
    """
    code = exit_code(status)
    number = exit_signal(status) or (code - 128 if code is not None and code > 128 else None)
    if number is None or number not in range(1, 65):
        return False
    return number not in FAULTS | STOP_SIGNALS | {signal.SIGKILL}


def lost_its_reader(status: int | None) -> bool:
    """Whether the process ended by SIGPIPE, which it gets for writing to what its far end has closed, or with the exit code that stands for it."""
    return signal.SIGPIPE in (exit_signal(status), (exit_code(status) or 0) - 128)


def words_of_status(status: int | None) -> str:
    """A wait(2) status in words: `exit status 1`, `killed by SIGKILL`, `exit unknown`."""
    if status is None:
        return "exit unknown"
    number = exit_signal(status)
    if number is None:
        return f"exit status {exit_code(status)}"
    return f"killed by {_SIGNALS.get(number, f'signal {number}')}"


def full_words(status: int | None) -> str:
    """A wait(2) status in words, with the signal's number: `exit status 1`, `killed by SIGKILL (9)`."""
    number = exit_signal(status)
    words = words_of_status(status)
    return f"{words} ({number})" if number in _SIGNALS else words


def status_of_code(code: int) -> int:
    """The wait(2) status for a return code as Python's subprocess gives it: negative for a signal."""
    return -code & 0x7F if code < 0 else (code & 0xFF) << 8


def merged(own: RankExit, failure: LauncherFailure | None) -> RankExit:
    """The exit; where its status is not known, with the status that the launcher wrote into its log."""
    if own.status is not None or failure is None or failure.status is None:
        return own
    return RankExit(
        rank=own.rank,
        pid=own.pid,
        at=own.at,
        moment=own.moment,
        status=failure.status,
        source="the launcher's log",
    )
