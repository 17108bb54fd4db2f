"""One process at one moment: its stacks, threads, files and locks."""

from mldebug.core.model.base import MeasuredData

MAIN_THREAD = "MainThread"


class Frame(MeasuredData, frozen=True, kw_only=True):
    """A frame of a stack. `line` is 0 where it is not known, as for most native code; `path` is the full file name (or the shared object)."""

    function: str
    file: str  # short: as much of the path as a person needs
    line: int = 0
    path: str = ""
    native: bool = False

    @property
    def label(self) -> str:
        """The frame as py-spy prints it: `train (megatron/training.py:915)`."""
        return (
            f"{self.function} ({self.file}:{self.line})"
            if self.line
            else f"{self.function} ({self.file})"
        )

    @property
    def place(self) -> str:
        """The frame for use in a sentence: its label, or `train.py:915` for code outside of any function."""
        if self.function != "<module>":
            return self.label
        return f"{self.file}:{self.line}" if self.line else self.file


class ThreadStack(MeasuredData, frozen=True, kw_only=True):
    """The stack of one Python thread; `frames` stand innermost first."""

    tid: int
    name: str = ""
    active: bool = False  # py-spy: on a CPU (or its thread state could not be told)
    owns_gil: bool = False
    frames: tuple[Frame, ...] = ()
    activity_unknown: bool = (
        False  # the tool that printed the stack does not say whether the thread was on a CPU
    )


class ThreadState(MeasuredData, frozen=True, kw_only=True):
    """The state of one thread, as read from /proc/PID/task/TID."""

    tid: int
    name: str = ""
    state: str = ""  # R S D T t Z X
    wchan: str = ""
    syscall: str = ""  # name: read, openat, futex, syscall_999; "" on a CPU or unreadable
    syscall_args: tuple[int, ...] = ()
    cpu_seconds: float = 0.0
    voluntary_switches: int = 0
    involuntary_switches: int = 0
    kernel_stack: tuple[str, ...] = ()


class OpenFile(MeasuredData, frozen=True, kw_only=True):
    """An open file descriptor. `kind`: file, pipe, fifo, socket, device, tty, gpu, anon or deleted."""

    fd: int
    target: str
    kind: str
    mode: str = ""  # r, w, rw
    mount: str = ""  # mount point that holds it, for kinds file, fifo, deleted
    fstype: str = ""
    source: str = ""  # what is mounted there: nfs01:/data
    device: str = ""  # major:minor of the filesystem, by which the storage monitor knows it
    stuck_seconds: float = 0.0  # for so long the filesystem had not answered the agent itself


class Io(MeasuredData, frozen=True, kw_only=True):
    """I/O counters of a process in bytes, from /proc/PID/io."""

    read_chars: int = 0
    written_chars: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class LockHolder(MeasuredData, frozen=True, kw_only=True):
    """A process that holds a file lock which another process waits for. Its command line is given only if both belong to the same
    user.
    """

    pid: int | None = None  # None: it belongs to somebody else
    rank: int | None = None  # of the same job; None: it is no part of the job
    child: bool = False  # it is not the rank itself but a process below it: a worker of its loader
    command: str = ""  # redacted


class FileLock(MeasuredData, frozen=True, kw_only=True):
    """A file lock that one thread of a process waits for."""

    tid: int
    kind: str  # flock, lockf, ofd
    path: str = ""  # "": the descriptor could not be read
    holders: tuple[LockHolder, ...] = ()  # none: on another node, or not to be seen from here


class ProcessState(MeasuredData, frozen=True, kw_only=True):
    """The state of one process at one moment, as read from /proc/PID."""

    pid: int
    name: str = ""
    state: str = ""
    ppid: int = 0
    start_ticks: int = 0
    uid: int = 0
    tracer_pid: int = 0
    tracer_name: str = ""  # as the kernel knows it
    pending_signals: int = 0  # SigPnd | ShdPnd, bit n-1 = signal n
    caught_signals: int = 0
    rss_bytes: int = 0
    exit_status: int | None = None
    frozen_by: str = ""  # the cgroup whose freezer holds it: /docker/4f2a; "": none
    io: Io | None = None
    threads: tuple[ThreadState, ...] = ()  # main thread first
    files: tuple[OpenFile, ...] = ()

    @property
    def main(self) -> ThreadState | None:
        """The main thread, or None for a zombie or a vanished process."""
        return next((thread for thread in self.threads if thread.tid == self.pid), None)


class Movement(MeasuredData, frozen=True, kw_only=True):
    """What changed between several samples of one process, to tell whether it is frozen or slow."""

    samples: int
    span_seconds: float
    same_frames: bool  # the main Python stack was equal in every sample
    same_function: bool = False  # equal but for line numbers in the innermost frames
    same_threads: bool = True  # the stacks of all Python threads were equal in every sample
    cpu_ratio: float = 0.0  # main thread: CPU time / wall time, 0..1
    process_cpu_ratio: float = 0.0  # all threads together, may exceed 1
    switches: int = 0  # voluntary context switches of the main thread in the span
    io_chars: int = 0  # bytes through read and write calls in the span


class SourceExcerpt(MeasuredData, frozen=True, kw_only=True):
    """Some lines of a source file, without secrets. `first`: the number of the first of them; `line`: where the process stands."""

    path: str
    line: int
    first: int
    lines: tuple[str, ...]


class ProcessCapture(MeasuredData, frozen=True, kw_only=True):
    """Everything that was read of one process at one moment."""

    pid: int
    name: str = ""
    kind: str = "rank"  # rank, worker (DataLoader), child, launcher
    python: bool = True
    state: ProcessState | None = None
    stacks: tuple[ThreadStack, ...] = ()  # py-spy dump --nonblocking
    native: tuple[ThreadStack, ...] = ()  # py-spy dump --native, where it was safe
    by_hook: bool = False  # the stacks are what its hook wrote: who holds the GIL is not known
    movement: Movement | None = None
    source_line: str = ""  # text of the innermost Python line of the main thread
    source: SourceExcerpt | None = (
        None  # that line with those around it, where few processes stand there
    )
    blocked_on: OpenFile | None = None  # what the system call of its training thread works on
    lock: FileLock | None = None  # the file lock that its training thread waits for
    command: str = ""  # of a child that is no Python: what it runs, redacted


class LogTail(MeasuredData, frozen=True, kw_only=True):
    """The last lines that a rank wrote, without control characters and secrets."""

    path: str
    lines: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()  # tracebacks further up, as far as the log was searched
    modified_at: float = 0.0
    size_bytes: int = 0
