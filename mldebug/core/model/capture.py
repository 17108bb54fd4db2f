"""What is captured of all ranks on a node at one moment, and of the node itself."""

from typing import Literal

import msgspec

from mldebug.core.model.base import MeasuredData
from mldebug.core.model.collectives import FlightRecord, NcclRas
from mldebug.core.model.identity import Gap, Job, RankIdentity, Remark
from mldebug.core.model.process import LogTail, ProcessCapture

CAPTURE_SCHEMA = "mldebug.capture/1"


class HookState(MeasuredData, frozen=True, kw_only=True):
    """What the hook (mldebug's code in a rank's process) reports at one moment: step, phase, figures. Ages are seconds."""

    step: int | None = None  # None: none was made yet
    step_age: float = 0.0  # since that step was reached
    phase: str = ""  # what it does besides stepping; "": nothing that it tells
    phase_age: float = 0.0  # since the phase began
    scalars: dict[str, float] = {}


class TraceTail(MeasuredData, frozen=True, kw_only=True):
    """The last calls of one rank, from the ring file that its call tracer writes, with source text; secrets are hidden."""

    lines: tuple[
        str, ...
    ]  # in NicerTrace's form, see `mldebug.capture.trace.line_format`; oldest first
    last: str  # where its training thread was last, in a few words
    written_at: float = 0.0  # unix, of the newest record
    age: float = 0.0  # seconds from then until the ring was read, or the rank had ended
    step: int | None = None
    engine: str = ""  # what traced: "sys.monitoring", "c", "python"
    path: str = ""  # of the ring, as the rank saw it


class RankCapture(MeasuredData, frozen=True, kw_only=True):
    """Everything that was captured of one rank: its process and children, its log, its Flight Recorder, its hook and its call
    trace.
    """

    identity: RankIdentity
    process: ProcessCapture
    children: tuple[ProcessCapture, ...] = ()
    log: LogTail | None = None
    flight: FlightRecord | None = None  # None: nobody could ask it
    # None: there is no hook in its process, or none that is believed; "said" on disk
    hook: HookState | None = msgspec.field(default=None, name="said")
    trace: TraceTail | None = None  # None: it is not traced, or its ring could not be read


class Fault(MeasuredData, frozen=True, kw_only=True):
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


class GpuSample(MeasuredData, frozen=True, kw_only=True):
    """One reading of one GPU; None for each value that could not be read."""

    at: float  # unix
    busy_ratio: float | None = None  # of the time with a kernel on it
    memory_ratio: float | None = None  # of the time with memory traffic
    power_watts: float | None = None


class RankDevice(MeasuredData, frozen=True, kw_only=True):
    """Readings of one rank's GPU while its job stood still, without a judgement of them."""

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


class NodePort(MeasuredData, frozen=True, kw_only=True):
    """A network port of a node that a job there may use, to be compared with those of its other nodes."""

    name: str  # mlx5_0/1
    link: str  # infiniband, roce, efa, ethernet
    up: bool = True
    gigabits: float = 0.0  # a second, while it is up; 0: not known
    bond: bool = False  # it stands for several interfaces


class NodeCapture(
    MeasuredData, frozen=True, kw_only=True, omit_defaults=False
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
    # its RDMA ports that its jobs may use, else its fastest Ethernet port; None: nobody has read them
    ports: tuple[NodePort, ...] | None = None
    ras: NcclRas | None = None  # None: nobody was asked, or nobody answered
    awaited: tuple[int, ...] = ()  # ranks whose Flight Recorder may still come
    gaps: tuple[Gap, ...] = ()
    versions: dict[str, str] = {}


class QueriedNode(MeasuredData, frozen=True, kw_only=True):
    """One node that was asked for its capture of a run, under the name by which it was asked.

    `state`: down, the scheduler says so; silent, no answer came, so it may be down; unable, it was reached and sent no capture;
    refused, what it sent contains impossible values.
    """

    name: str
    state: Literal["answered", "down", "silent", "unable", "refused"] = "answered"
    reason: str = ""  # why there is no capture of it, in a few words
    way_out: str = ""
    last_seen: float | None = (
        None  # unix, by the clock of whoever asked; None: never, as far as he knows
    )
    place: str = ""  # the site's label of where it stands: a rack, a switch


class QueriedNodes(MeasuredData, frozen=True, kw_only=True):
    """All nodes that were asked for captures of a run, each with the result."""

    nodes: tuple[QueriedNode, ...] = ()  # sorted by name
    listed_by: str = (
        ""  # the scheduler that says that these are all the nodes of the job; "": a person
    )
    by: str = ""  # the node that asked, where it is one of them: it may be cut off itself
    hidden: tuple[str, ...] = ()  # nodes on which not every process could be looked at

    def named(self, *states: str) -> tuple[str, ...]:
        """The names of the nodes that are in one of these states."""
        return tuple(node.name for node in self.nodes if node.state in states)

    @property
    def absent(self) -> tuple[str, ...]:
        """The names of the nodes that gave no capture: down, silent, unable or refused."""
        return self.named("down", "silent", "unable", "refused")
