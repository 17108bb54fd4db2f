"""All that the agent knows at one moment, as one immutable value.

`status`, the API and the metrics read only this.
"""

from collections.abc import Mapping

import msgspec

from mldebug.alerts.hub_delivery import FleetDelivery
from mldebug.alerts.view import EventsView
from mldebug.core.model import (
    Gap,
    HookState,
    Job,
    MeasuredData,
    RankDevice,
    RankIdentity,
    Remark,
    Role,
    shared_fields,
)
from mldebug.goodput.account.job_goodput import JobGoodput
from mldebug.goodput.scalars.history import RunHistory
from mldebug.goodput.scalars.model import TrainingEvent
from mldebug.goodput.straggler import Slowness
from mldebug.hardware.gpu.expected import GpuCount
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch
from mldebug.hardware.health.model import ComponentHealth
from mldebug.hardware.host_memory.state import NodeMemory
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.counts import KernelCounts
from mldebug.hardware.ports.state import NodePorts
from mldebug.jobs.known_issues.match import KnownIssue
from mldebug.jobs.logs.records import LogCounts, StepTimes
from mldebug.jobs.run_records.model import StoredRecord
from mldebug.jobs.schedulers.model import Orphan, SchedulerState
from mldebug.probes.history import JudgedSeries
from mldebug.storage.checkpoints.state import SeriesState
from mldebug.storage.filesystems.state import StorageState


class RunState(MeasuredData, frozen=True, kw_only=True):
    """One run on this node, as `mldebug status`, the API and the metrics show it."""

    id: str  # on this node
    name: str
    launcher: str
    id_across_nodes: str = ""  # the same on all nodes of the run
    attempt: int = 0
    user: str = ""
    uid: int = -1  # the owner: people see their own runs
    world_size: int = 1
    ranks: dict[int, int] = {}  # rank -> pid
    lost: tuple[int, ...] = ()
    exits: dict[
        int, str
    ] = {}  # rank -> how it ended, where the agent saw it: "killed by SIGKILL (9)"
    classes: dict[
        int, str
    ] = {}  # rank -> class, of the last stack sample; empty while nobody is suspected
    roles: dict[int, Role] = {}  # rank -> its part in the stall, of the same sample
    frames: dict[int, str] = {}  # rank -> last Python frame, of the same sample
    traps: tuple[KnownIssue, ...] = ()  # known ones that it sits in: never an alarm
    kernel: tuple[str, ...] = ()  # what kernel and driver said against its ranks: the newest 8
    stage: str = "watching"
    sentence: str = ""  # why it is quiet, or not
    quiet_seconds: float = 0.0
    timeout_seconds: float = 0.0
    why_timeout: str = ""
    step: int | None = None
    # rank -> the newest record of its hook; a rank without a hook is absent; "said" in JSON
    hooks: dict[int, HookState] = msgspec.field(default_factory=dict, name="said")
    traced: dict[int, float] = {}  # rank -> unix time of the newest record in its trace ring
    loss: float | None = None
    step_seconds: float | None = None
    scalars: dict[
        str, float
    ] = {}  # grad_norm, learning_rate, tokens_per_second, …: the last finite value, as the log has it
    training_events: tuple[TrainingEvent, ...] = ()  # found in its figures, the oldest first
    step_times: StepTimes | None = None  # since the agent met the run
    progress_at: float | None = None  # unix; None where the run is not watched
    log: str = ""
    lives_by: str = ""  # the signal by which it is known to move, and what would give a better one
    log_counts: LogCounts = LogCounts()
    gpus: dict[int, str] = {}  # rank -> uuid of its GPU, as far as it is known
    gpus_guessed: tuple[int, ...] = ()  # ranks whose GPU only a convention tells
    devices: str = ""  # what the GPUs of its ranks do, in one sentence
    gpu_states: tuple[RankDevice, ...] = ()  # the same in figures, by rank
    # its checkpoints, by place; "saves" in JSON
    checkpoint_series: tuple[SeriesState, ...] = msgspec.field(default=(), name="saves")
    slowness: Slowness | None = None  # what the last row of stack samples of its ranks showed
    gpu_seconds: dict[str, float] = {}  # by use, as far as they are certain: see `JobGoodput`
    goodput: str = ""  # where the GPU hours of its job went, as a sentence
    incident: str = ""  # id of the open one
    incident_kind: str = ""  # stall, abnormal_end, slowdown
    incident_since: float | None = None  # unix: since when the run has not moved
    verdict: str = ""
    report: str = ""  # the sentence of the open incident
    culprits: tuple[int, ...] = ()  # ranks that it names


class SourceState(MeasuredData, frozen=True, kw_only=True):
    """The state of one worker of the agent, which reads one source."""

    name: str
    success: bool = True
    seconds: float = 0.0  # of the last round
    stuck: bool = False
    error: str = ""
    last_success: float | None = None  # unix: end of its last round that went well


class Children(MeasuredData, frozen=True, kw_only=True):
    """The agent's child processes and their descendants: their number, their CPU time in seconds, and the memory in bytes that
    they and the agent use together.
    """

    count: int
    cpu_seconds: float  # of the living and of those that are gone; never falls
    memory_bytes: int | None = None  # with the agent's own: shared pages count once


class FoundJobs(MeasuredData, frozen=True, kw_only=True):
    """The jobs on this node as one search of all its processes has found them, the remarks about them, and what could not be read. `at`: unix
    time at which it began; 0: there was none yet.
    """

    at: float = 0.0
    jobs: tuple[Job, ...] = ()  # with those that wait for nodes
    remarks: tuple[Remark, ...] = ()
    gaps: tuple[Gap, ...] = ()


class Snapshot(MeasuredData, frozen=True, kw_only=True):
    """Everything the agent knows at one moment."""

    node: str
    at: float  # unix
    started_at: float
    pid: int = 0  # of the agent
    runs: tuple[RunState, ...] = ()
    sources: tuple[SourceState, ...] = ()
    incidents: dict[str, int] = {}  # "kind/verdict" -> how many since the agent started
    last_report: dict[str, str] = {}  # "kind/verdict" -> id of the newest report
    reports_lost: int = 0
    reports_waiting: int = 0  # in memory, for a state dir that does not take them
    state_dir_losses: int = 0  # times that it was removed or replaced under the agent
    hidden_runs: int = 0  # of other users, which whoever asked may not see
    remarks: tuple[Remark, ...] = ()
    gaps: tuple[Gap, ...] = ()
    unanswered: dict[str, int] = {}  # by way: questions about collectives without an answer
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    children: Children | None = None
    gpus: NodeGpus | None = None  # the last full read, counters made monotone; None where it failed
    gpu_watch: NodeWatch | None = None  # the last watch read; None where it failed
    gpu_count: GpuCount | None = None  # against what is remembered; None: not looked at yet
    gpus_released_until: float | None = None  # unix: nothing reads the GPUs until then
    gpus_released_why: str = ""
    kernel: KernelCounts | None = None  # None: the kernel's log was not looked at yet
    kernel_events: tuple[RankEvent, ...] = ()  # of the last hours, the oldest first
    memory: NodeMemory | None = None  # None: not looked at yet, or the look failed
    # of the places of the configuration; "saves" in JSON
    checkpoint_series: tuple[SeriesState, ...] = msgspec.field(default=(), name="saves")
    # by code: looks at checkpoints that were not whole, and why; "save_troubles" in JSON
    checkpoint_troubles: dict[str, int] = msgspec.field(default_factory=dict, name="save_troubles")
    ports: NodePorts | None = None  # None: not looked at yet, or the look failed
    health: tuple[ComponentHealth, ...] = ()  # by component and GPU; empty: not looked at yet
    storage: StorageState | None = None  # None: not looked at yet
    schedulers: tuple[SchedulerState, ...] = ()  # of the configuration
    orphans: tuple[Orphan, ...] | None = None  # None: not looked at
    probes: tuple[JudgedSeries, ...] | None = None  # None: not looked at yet, or the look failed
    # of the runs that live and of those that ended lately; not in the JSON of the status: /api/v1/history gives it
    histories: tuple[RunHistory, ...] = ()
    # with what each run was started; not in the JSON of the status: /api/v1/records gives it
    run_records: tuple[StoredRecord, ...] = ()
    # what the last look at all processes found; not in the JSON of the status: /api/v1/jobs gives it
    found: FoundJobs = FoundJobs()
    goodput: tuple[JobGoodput, ...] = ()  # of the jobs that live, then of those that ended lately
    cluster: str = ""  # who coordinates, or that nobody else answers; "": this agent knows no agents of other nodes
    cluster_refused: dict[
        str, int
    ] = {}  # by reason; empty: this agent knows no agents of other nodes
    fleet: FleetDelivery | None = None  # None: this agent sends to no hub
    events: EventsView = EventsView()  # what somebody is told of, and the channels
    series_budget: int = 5000  # of the metrics
    version: str = ""
    replay: str = ""  # what is played back, in words; "": this is a live node


def encode(snapshot: Snapshot) -> bytes:
    """The snapshot as JSON, as the API and `mldebug status --json` give it: without histories and records, which are long, and without what
    its runs say, too.
    """
    shown = msgspec.structs.replace(snapshot, histories=(), run_records=(), found=FoundJobs())
    return msgspec.json.encode(shown)


def job_of(run: RunState, started: Mapping[int, float] = {}) -> Job:
    """Rebuild a job from a run of a snapshot.

    It has only what the snapshot holds. `started`: start times (unix) by pid, where known.
    """
    ranks = tuple(
        RankIdentity(
            rank=rank, pid=pid, world_size=run.world_size, started_at=started.get(pid, 0.0)
        )
        for rank, pid in sorted(run.ranks.items())
    )
    return Job(**shared_fields(run, Job), ranks=ranks)


def is_run_of(run: RunState, job: Job) -> bool:
    """Whether the agent's run is this job. The agent may know it by the id that it had before its launcher died."""
    return run.id == job.id or any(run.ranks.get(rank.rank) == rank.pid for rank in job.ranks)
