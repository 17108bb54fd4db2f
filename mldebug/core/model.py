"""The nouns: everything mldebug knows is a value of one of these types.

Immutable `msgspec` structs without behaviour beyond small properties. Captures and reports are stored as their JSON.
Units: seconds, bytes, unix time (float, UTC). `rank` is always the global rank.
"""

from enum import StrEnum
from typing import Literal

import msgspec

CAPTURE_SCHEMA = "mldebug.capture/1"

MAIN_THREAD = "MainThread"


class Noun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of measured data: compact as JSON (default values are left out), unknown fields are ignored when it is read."""


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """Base of report data: every field is always written."""


# --- who -----------------------------------------------------------------------------------------


class RankIdentity(Noun, frozen=True, kw_only=True):
    """The identity of a rank's process on this node, read once and then cached."""

    rank: int
    world_size: int
    pid: int
    start_ticks: int = 0  # /proc/PID/stat field 22: with pid it survives PID reuse
    started_at: float = 0.0
    node: str = ""
    local_rank: int | None = None
    local_world_size: int | None = None
    uid: int = 0
    owner: int | None = (
        None  # who made its user namespace, where it has one: then a user has thousands of uids
    )
    user: str = ""
    launcher: str = "environment"  # name of the launchers/ plugin that recognised it
    launcher_pid: int | None = None
    run_id: str = ""
    attempt: int = 0
    master: str = ""  # "addr:port"
    script: str = ""
    argv: tuple[str, ...] = ()  # redacted
    namespace_pid: int | None = None  # pid inside its own pid namespace, when that differs
    container: str = ""
    nccl_ras: str = ""  # NCCL_RAS_ADDR; "off": NCCL_RAS_ENABLE is 0; "": neither is set
    array: str = ""  # id of the scheduler's job array that it is a task of


class LostRank(Noun, frozen=True, kw_only=True):
    """A rank that should be on this node and has no living process."""

    rank: int
    pid: int | None = None  # of the zombie, where one is left
    exit_status: int | None = None  # wait(2) status word, where the kernel still tells it
    reason: str = "exit unknown"
    leftovers: tuple[int, ...] = ()  # living children it left behind


class NodeWait(Noun, frozen=True, kw_only=True):
    """What a launcher without ranks waits for: the other nodes of its run, as its command line and environment name them."""

    nodes: int = 0  # that the run needs at least; 0: not known
    here: int = 1  # launchers of the run on this node: each stands for one of its nodes
    rendezvous: str = "static"  # c10d, static, etcd-v2 …
    endpoint: str = ""  # "addr:port" where the nodes meet
    run_id: str = ""
    again: bool = False  # it has had ranks before, which have ended
    present: tuple[str, ...] = ()  # nodes with a launcher, as all agents count; empty: none counts


class Job(Noun, frozen=True, kw_only=True):
    """One attempt of one run on this node (or, after merging, on all nodes)."""

    id: str  # short and stable: derived from run id, master and first start
    name: str
    launcher: str
    attempt: int = 0
    world_size: int = 1
    launcher_pid: int | None = None
    uid: int = 0
    user: str = ""
    started_at: float = 0.0
    nodes: tuple[str, ...] = ()
    node_list: str = ""  # all nodes of the run as its scheduler says, folded; "": none says so
    ranks: tuple[RankIdentity, ...] = ()  # sorted by rank
    lost: tuple[LostRank, ...] = ()
    waits: NodeWait | None = None  # its launcher has started no rank yet; None: it has ranks


class Remark(Noun, frozen=True, kw_only=True):
    """Something odd that was found and is no stall: two processes with one rank, impossible variables."""

    kind: str
    message: str
    pids: tuple[int, ...] = ()


class Gap(Noun, frozen=True, kw_only=True):
    """Evidence that could not be had: what, why, and how to get it the next time."""

    what: str
    reason: str
    rank: int | None = None
    pid: int | None = None
    way_out: str = ""


# --- what was seen -------------------------------------------------------------------------------


class Frame(Noun, frozen=True, kw_only=True):
    """A frame of a stack. `line` is 0 for native code; `path` is the full file name (or the shared object)."""

    function: str
    file: str  # short: as much of the path as a person needs
    line: int = 0
    path: str = ""
    native: bool = False

    @property
    def label(self) -> str:
        """`train (megatron/training.py:915)`, the form py-spy prints."""
        return (
            f"{self.function} ({self.file}:{self.line})"
            if self.line
            else f"{self.function} ({self.file})"
        )

    @property
    def place(self) -> str:
        """The frame in a sentence: its label, or of code outside of any function `train.py:915`."""
        if self.function != "<module>":
            return self.label
        return f"{self.file}:{self.line}" if self.line else self.file


class ThreadStack(Noun, frozen=True, kw_only=True):
    """The stack of one Python thread; `frames` stand innermost first."""

    tid: int
    name: str = ""
    active: bool = False  # py-spy: on a CPU (or its thread state could not be told)
    owns_gil: bool = False
    frames: tuple[Frame, ...] = ()
    activity_unknown: bool = (
        False  # the tool that printed the stack does not say whether the thread was on a CPU
    )


class ThreadState(Noun, frozen=True, kw_only=True):
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


class OpenFile(Noun, frozen=True, kw_only=True):
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


class Io(Noun, frozen=True, kw_only=True):
    """I/O counters of a process in bytes, from /proc/PID/io."""

    read_chars: int = 0
    written_chars: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class LockHolder(Noun, frozen=True, kw_only=True):
    """A process that holds a lock on a file. Its command line is included only if it belongs to the user of the waiting process."""

    pid: int | None = None  # None: it belongs to somebody else
    rank: int | None = None  # of the same job; None: it is no part of the job
    child: bool = False  # it is not the rank itself but a process below it: a worker of its loader
    command: str = ""  # redacted


class FileLock(Noun, frozen=True, kw_only=True):
    """A file lock that one thread of a process waits for."""

    tid: int
    kind: str  # flock, lockf, ofd
    path: str = ""  # "": the descriptor could not be read
    holders: tuple[LockHolder, ...] = ()  # none: on another node, or not to be seen from here


class ProcessState(Noun, frozen=True, kw_only=True):
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


class Movement(Noun, frozen=True, kw_only=True):
    """What changed between several samples of one process: it shows whether the process is frozen or slow."""

    samples: int
    span_seconds: float
    same_frames: bool  # the main Python stack was equal in every sample
    same_function: bool = False  # equal but for line numbers in the innermost frames
    same_threads: bool = True  # the stacks of all Python threads were equal in every sample
    cpu_ratio: float = 0.0  # main thread: CPU time / wall time, 0..1
    process_cpu_ratio: float = 0.0  # all threads together, may exceed 1
    switches: int = 0  # voluntary context switches of the main thread in the span
    io_chars: int = 0  # bytes through read and write calls in the span


class ProcessCapture(Noun, frozen=True, kw_only=True):
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
    blocked_on: OpenFile | None = None  # what the system call of its training thread works on
    lock: FileLock | None = None  # the file lock that its training thread waits for
    command: str = ""  # of a child that is no Python: what it runs, redacted


class LogTail(Noun, frozen=True, kw_only=True):
    """The last lines a rank wrote, control characters and secrets removed."""

    path: str
    lines: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()  # tracebacks further up, as far as the log was searched
    modified_at: float = 0.0
    size_bytes: int = 0


class Collective(Noun, frozen=True, kw_only=True):
    """One collective call of one rank, as recorded by its Flight Recorder."""

    op: str  # all_reduce
    sequence: int  # number of the call in its process group, from 1
    elements: int | None = None  # of all inputs; None: not told
    outputs: int | None = None  # elements of all outputs; None: not told
    dtypes: str = ""  # "Float"
    done: bool = False
    created_at: float = 0.0  # unix, when it was called
    timeout: float = 0.0  # seconds that it may take; 0: not told
    state: str = ""  # scheduled, started, completed, as the recorder spells it; "": not told
    frames: tuple[Frame, ...] = ()  # where it was called, innermost first; of a raw dump alone


class Transfer(Noun, frozen=True, kw_only=True):
    """One unfinished send or receive of one rank, as recorded by its Flight Recorder."""

    op: str  # send, recv
    peer: int  # its number in the group
    group: str  # name
    description: str = ""
    members: str = ""  # of the group: global ranks, folded; "" where they are not known
    sequence: int = 0  # number of the rank's own transfer in the group, from 1
    created_at: float = 0.0
    frames: tuple[Frame, ...] = ()


class FlightGroup(Noun, frozen=True, kw_only=True):
    """One process group as one of its ranks sees it. The counts are sequence numbers; 0: none yet."""

    name: str
    backend: str = ""  # nccl, gloo: each counts for itself
    description: str = ""  # "default_pg", "dp"; what the job calls it
    members: str = ""  # global ranks, folded: "0-3"; "" where they are not known
    enqueued: int = 0
    completed: int = 0
    calls: tuple[Collective, ...] = ()  # oldest first: what is pending, and the newest


class GroupCount(Noun, frozen=True, kw_only=True):
    """How far a rank is in a process group by its `pg_status`, which a dump has even where it leaves out finished calls."""

    number: int  # by which this rank's process knows the group
    name: str = ""  # "": the dump holds no call of it, so it is not known
    enqueued: int = 0
    completed: int = 0


class PairCount(Noun, frozen=True, kw_only=True):
    """How far a rank is with the sends and receives of a process group of two, which both number alike."""

    group: str
    members: str  # global ranks, folded
    done: int  # number of the last that is done


class FlightRecord(Noun, frozen=True, kw_only=True):
    """The content of one rank's Flight Recorder at one moment."""

    version: str = ""
    groups: tuple[FlightGroup, ...] = ()
    sends: tuple[str, ...] = ()  # point-to-point calls that are not done: "recv 3<-2"
    transfers: tuple[Transfer, ...] = ()  # the same, taken apart
    pairs: tuple[PairCount, ...] = ()
    silent: tuple[str, ...] = ()  # backends that have made calls of which no recorder tells
    counts: tuple[GroupCount, ...] = ()  # of a dump that holds no finished call
    unplaced: int = (
        0  # calls without a group, a number or a state: what this rank has called is not known
    )
    way: str = (
        ""  # how it was had, a `mldebug.capture.flight_recorder.access.AccessKind`; "": by the hook
    )


class NcclRank(Noun, frozen=True, kw_only=True):
    """One rank of a communicator, as NCCL RAS reports it. `rank` counts inside this communicator."""

    rank: int
    host: str = ""  # an address; "": not told
    pid: int | None = None  # in its own pid namespace
    gpu: int | None = None  # its CUDA device
    status: str = ""  # running, initializing, finalized, aborted, error 3; "": not told
    counts: dict[str, int] = {}  # function -> how many the host has launched; those of 0 left out


class NcclAbsent(Noun, frozen=True, kw_only=True):
    """A process of which NCCL RAS has no data. `rank` counts inside its communicator; None: the communicator is not known."""

    rank: int | None = None
    host: str = ""
    pid: int | None = None
    gpu: int | None = None
    unresponsive: bool = False  # it did not answer; else it answers, and has left the communicator
    dead: bool = False  # RAS has given it up


class NcclLevel(Noun, frozen=True, kw_only=True):
    """How many `ranks` of a communicator have launched `count` calls of `function`."""

    function: str  # AllReduce
    count: int
    ranks: int


class NcclCommunicator(Noun, frozen=True, kw_only=True):
    """A communicator as NCCL RAS reports it. `ranks` may be incomplete; `levels` and the sums cover all that answered."""

    key: str  # all the hashes that it is known by
    size: int = 0  # 0: not told
    answered: int = 0
    launched: int | None = None  # sum over ranks and functions; None: not told
    furthest: int = 0  # the most that one rank has launched
    ranks: tuple[NcclRank, ...] = ()
    absent: tuple[NcclAbsent, ...] = ()
    absent_count: int = 0
    levels: tuple[NcclLevel, ...] = ()  # of the functions whose counts differ


class NcclRas(Noun, frozen=True, kw_only=True):
    """The NCCL RAS answer of one process, about all processes of the job. Counts are launches by the host: nothing says what completed."""

    version: str  # of NCCL: 2.28.9
    form: str = "json"  # text: only what differs is told, so equal counts are not known
    communicators: tuple[NcclCommunicator, ...] = ()
    absent: tuple[NcclAbsent, ...] = ()  # processes, where no communicator is told
    seconds: float = 0.0  # that it took to collect
    timeouts: int = 0  # processes that were too slow
    own: tuple[str, ...] = ()  # addresses of the network that was asked from
    left_out: int = 0  # communicators


class HookState(Noun, frozen=True, kw_only=True):
    """The state that the hook in a rank's process reports at one moment. Ages are seconds."""

    step: int | None = None  # None: none was made yet
    step_age: float = 0.0  # since that step was reached
    phase: str = ""  # what it does besides stepping; "": nothing that it tells
    phase_age: float = 0.0  # since the phase began
    scalars: dict[str, float] = {}


class TraceTail(Noun, frozen=True, kw_only=True):
    """The last calls in the ring file of one rank's tracer, with source text; secrets are hidden."""

    lines: tuple[
        str, ...
    ]  # in NicerTrace's form, see `mldebug.capture.trace.line_format`; oldest first
    last: str  # where its training thread was last, in a few words
    written_at: float = 0.0  # unix, of the newest record
    age: float = 0.0  # seconds from then until the ring was read, or the rank had ended
    step: int | None = None
    engine: str = ""  # what traced: "sys.monitoring", "c", "python"
    path: str = ""  # of the ring, as the rank saw it


class RankCapture(Noun, frozen=True, kw_only=True):
    """Everything that was captured of one rank: its process, its children, its recorders."""

    identity: RankIdentity
    process: ProcessCapture
    children: tuple[ProcessCapture, ...] = ()
    log: LogTail | None = None
    flight: FlightRecord | None = None  # None: nobody could ask it
    # None: there is no hook in its process, or none that is believed; "said" on disk
    hook: HookState | None = msgspec.field(default=None, name="said")
    trace: TraceTail | None = None  # None: it is not traced, or its ring could not be read


class Fault(Noun, frozen=True, kw_only=True):
    """A fault of a GPU, a process or the node, reported by the kernel, the driver or a GPU, with the rank or pid that it concerns."""

    kind: str  # xid, sxid, gpu_lost, gpu_init_failed, gpu_missing, ecc, oom_kill
    at: float  # unix: when the worst of it was first said
    words: str  # "Xid 79 (GPU has fallen off the bus) on GPU 0000:3b:00.0"
    code: str = ""  # xid_79
    tier: str = (
        ""  # of mldebug.hardware.kernel_log.xids: fatal means that the GPU or its node is to blame
    )
    catalogue: str = ""  # version of the Xid catalogue that says so; "": no Xid
    node: str = ""
    rank: int | None = None  # None: nobody in particular
    by: str = "node"  # how the rank is known: process, child, gpu, environment; node: it is not
    gpu: int | None = None  # index
    uuid: str = ""
    bus_id: str = ""
    trusted: bool = True  # False: a program wrote it into the kernel's log
    confirmed: bool = True  # False: one read alone tells it, which may be wrong
    advice: str = ""  # "drain and reboot the node"


class GpuSample(Noun, frozen=True, kw_only=True):
    """One reading of one GPU; None for each value that could not be read."""

    at: float  # unix
    busy_ratio: float | None = None  # of the time with a kernel on it
    memory_ratio: float | None = None  # of the time with memory traffic
    power_watts: float | None = None


class RankDevice(Noun, frozen=True, kw_only=True):
    """Readings of one rank's GPU while its job stood still: figures without judgement."""

    rank: int
    uuid: str
    index: int
    sure: bool = True  # False: only a convention says that it is this rank's
    sliced: bool = False  # a MIG slice, of which the figures of the whole GPU say nothing
    others: int = 0  # other GPUs on which the driver counts its process
    pids: tuple[int, ...] = ()  # compute processes on it, as the driver counted them last
    state: str = ""  # of the fingerprint, a `mldebug.hardware.gpu.fingerprint.GpuState`; "": nobody has watched it
    usual_watts: float | None = None  # at work, in this run
    sm_active_ratio: float | None = (
        None  # by the hardware's own counters: the mean up to the last full read
    )
    sm_since: float = 0.0  # unix: from when on
    sm_read_at: float = 0.0  # unix: until when
    read_at: float = 0.0  # unix: of the last full read, which has all that follows
    clock_ratio: float | None = None  # of the multiprocessors, as a share of the highest
    slowed: tuple[str, ...] = ()  # reasons of the hardware for which clocks are cut, sorted
    link_bytes_per_second: float | None = None  # over NVLink, both directions
    sick: tuple[
        str, ...
    ] = ()  # what speaks against its health, in phrases: rows to be remapped, errors
    samples: tuple[GpuSample, ...] = ()  # oldest first


class NodeCapture(
    Noun, frozen=True, kw_only=True, omit_defaults=False
):  # its schema is always written
    """Everything that was captured on one node of one job at one moment; stored as evidence/capture-NODE.json."""

    schema: str = CAPTURE_SCHEMA
    node: str
    taken_at: float
    duration_seconds: float = 0.0
    quiet_seconds: float = 0.0  # without progress until then, where somebody watched; 0: nobody did
    usual_gap_seconds: float = 0.0  # between two signs of progress of this run; 0: not known
    step: int | None = None  # the run's last, as whoever watched it knew
    steps: tuple[int, int] | None = (
        None  # the last at the begin and at the end of the capture, where both are known
    )
    job: Job
    ranks: tuple[RankCapture, ...] = ()  # sorted by rank
    launcher: ProcessCapture | None = None  # of a job whose launcher has started no rank yet
    remarks: tuple[Remark, ...] = ()
    faults: tuple[Fault, ...] = ()  # of the last hours, the oldest first
    devices: str = ""  # what the GPUs of its ranks did, in one sentence: evidence, no verdict
    # its newest checkpoints, and what would be lost, in one sentence; "saves" on disk
    checkpoints: str = msgspec.field(default="", name="saves")
    gpus: tuple[RankDevice, ...] = ()  # of its ranks, sorted by rank; of an earlier version none
    ras: NcclRas | None = None  # None: nobody was asked, or nobody answered
    awaited: tuple[int, ...] = ()  # ranks whose Flight Recorder may still come
    gaps: tuple[Gap, ...] = ()
    versions: dict[str, str] = {}


class QueriedNode(Noun, frozen=True, kw_only=True):
    """One node that was asked for its capture of a run, under the name by which it was asked.

    down: the scheduler says so; silent: nothing came from it, so it may be down; unable: it could be reached and has sent
    no capture; refused: what it sent cannot be.
    """

    name: str
    state: Literal["answered", "down", "silent", "unable", "refused"] = "answered"
    reason: str = ""  # why there is no capture of it, in a few words
    way_out: str = ""
    last_seen: float | None = (
        None  # unix, by the clock of whoever asked; None: never, as far as he knows
    )
    place: str = ""  # the site's label of where it stands: a rack, a switch


class QueriedNodes(Noun, frozen=True, kw_only=True):
    """The nodes that were asked for captures of a run, and what came of it."""

    nodes: tuple[QueriedNode, ...] = ()  # sorted by name
    listed_by: str = (
        ""  # the scheduler that says that these are all the nodes of the job; "": a person
    )
    by: str = ""  # the node that asked, where it is one of them: it may be cut off itself
    hidden: tuple[str, ...] = ()  # nodes on which not every process could be looked at

    def named(self, *states: str) -> tuple[str, ...]:
        """Names of the nodes that are in one of these states."""
        return tuple(node.name for node in self.nodes if node.state in states)

    @property
    def absent(self) -> tuple[str, ...]:
        """The names of the nodes that gave no capture: down, silent, unable or refused."""
        return self.named("down", "silent", "unable", "refused")


# --- what it means -------------------------------------------------------------------------------


class Role(StrEnum):
    """The part that a rank of some class plays in a stall."""

    WAITING = "waiting"  # only other ranks can end its wait: a victim
    INERT = "inert"  # it does nothing and nobody in the job can wake it
    BUSY = "busy"  # it computes
    EXITED = "exited"
    MISSING = "missing"  # it never came
    UNCLEAR = "unclear"  # the evidence does not tell


class Verdict(StrEnum):
    """Why the job stopped. Where two verdicts fit, the one that stands first here is given."""

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
    """How sure a verdict is: high, direct evidence; medium, stacks and counters agree; low, one sign."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Classification(Noun, frozen=True, kw_only=True):
    """What one rank is doing. `name`: a class of the table in `mldebug.diagnosis.classify.rank_class`."""

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


class ClassifiedRank(Noun, frozen=True, kw_only=True):
    """A rank's capture with its class; `capture` is None for a rank without a process."""

    rank: int
    node: str
    pid: int | None
    is_: Classification
    capture: RankCapture | None = None


class Culprit(Spoken, frozen=True, kw_only=True):
    """What the waiting ranks wait for: a rank, node, GPU, mount, link or process."""

    kind: Literal["rank", "node", "gpu", "mount", "link", "worker"]
    rank: int | None
    node: str
    pid: int | None
    reason: str


class Finding(Noun, frozen=True, kw_only=True):
    """The conclusion of one detector."""

    verdict: Verdict
    culprits: tuple[Culprit, ...]
    confidence: Confidence
    summary: str
    evidence: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


class Diagnosis(Spoken, frozen=True, kw_only=True):
    """The conclusion of all detectors, in the words that people read."""

    verdict: Verdict
    culprits: tuple[Culprit, ...]
    confidence: Confidence
    summary: str  # one sentence that names who and why
    evidence: tuple[str, ...]
    next_steps: tuple[str, ...]
    works: bool = False  # the job went on while it was looked at: nothing is stuck


# --- all ranks together --------------------------------------------------------------------------


class Group(Spoken, frozen=True, kw_only=True):
    """Ranks with the same principal stack."""

    ranks: str  # folded: "0-5,7"
    count: int
    role: Role
    class_: str = msgspec.field(name="class")
    doing: str
    frames: tuple[str, ...]  # labels, innermost first


class TreeNode(Spoken, frozen=True, kw_only=True):
    """One node of the merged prefix tree, outermost frame at the root."""

    frame: str
    ranks: str
    count: int
    children: tuple["TreeNode", ...] = ()


class Judgement(Noun, frozen=True, kw_only=True):
    """Everything that `mldebug.diagnosis.diagnose.diagnose` concludes from the captures of one job."""

    diagnosis: Diagnosis
    ranks: tuple[ClassifiedRank, ...]  # sorted by rank, the lost and missing ones among them
    groups: tuple[Group, ...]  # suspects first, then by size
    group_of: dict[int, int] = {}  # rank -> index into groups
    tree: tuple[TreeNode, ...] = ()
    stalled: bool = False  # somebody is named, or all who were seen wait and nobody moved
    taken_at: float = 0.0  # of the newest capture that it rests on; 0: of none
