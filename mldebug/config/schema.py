"""The configuration of this node's agent and of every command: one strict YAML file, an empty one is a good one.

Each section is a struct: its fields are the legal keys, their defaults the defaults (`mldebug.core.yaml_reader` reads them).
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import yaml

from mldebug.config.fleet import FleetConfig, HubConfig
from mldebug.config.storage import CheckpointsConfig, DirSizesConfig, StorageConfig
from mldebug.core.errors import ConfigError
from mldebug.core.plugin_options import Plugin, PluginKind
from mldebug.core.plugins import load, names
from mldebug.core.scalars import members, unwrap
from mldebug.core.units import (
    SECONDS,
    SIZE,
    Duration,
    PositiveDuration,
    format_duration,
    format_size,
)
from mldebug.core.yaml_reader import Section, parse
from mldebug.hardware.health.thresholds import Thresholds

SYSTEM_STATE_DIR = Path("/var/lib/mldebug")
MAX_BYTES = 256 * 1024


def default_state_dir(environ: Mapping[str, str], uid: int) -> Path:
    """Where state and reports are kept by default: /var/lib/mldebug for root, else the user's XDG state directory."""
    xdg, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if uid != 0 and xdg.startswith("/"):
        return Path(xdg) / "mldebug"
    if uid != 0 and home.startswith("/"):
        return Path(home) / ".local/state/mldebug"
    return SYSTEM_STATE_DIR


def _own_state_dir() -> Path:
    return default_state_dir(os.environ, os.geteuid())


class AgentConfig(Section, frozen=True, kw_only=True):
    """The section `agent`: settings of the agent process on a node."""

    # ordinary users: $XDG_STATE_HOME/mldebug or ~/.local/state/mldebug
    state_dir: Path = msgspec.field(default_factory=_own_state_dir)
    # where Prometheus scrapes /metrics; "" for nowhere
    listen: str = "127.0.0.1:9753"
    # who shows this token sees all web pages by TCP, and may ask for captures, as Alertmanager's webhook does:
    # openssl rand -hex 32
    token_file: Path | None = None
    # names of users, of their jobs and of their folders in /metrics by TCP, for everybody who reaches it. Without it pseudonyms stand
    # for them there, but for who shows the token
    public_names: bool = False
    # ranks of one run in several containers or pods of a node are one run. Only where all of them belong to one owner: anybody
    # may start a container that calls itself a rank of another's run
    join_containers: bool = False
    # Unix group whose members see all runs at the socket; others see their own. "" for none
    group: str = ""


class CaptureConfig(Section, frozen=True, kw_only=True):
    """The section `capture`: how evidence is taken."""

    RENAMED: ClassVar[Mapping[str, str]] = {"preview": "flight_recorder"}

    # auto: beside this Python, then $PATH
    py_spy: Literal["auto"] | Path = "auto"
    # for one capture of the whole node
    deadline: PositiveDuration = 30.0
    # C frames; they stop a rank for 0.03 to 1 s. auto: only where it is safe and says more
    native: Literal["auto", "never", "always"] = "auto"
    # ask NCCL itself who has launched what (2.24 and newer)
    nccl_ras: bool = True
    # Flight Recorders from worker servers, dump files and debug FIFOs, where a job offers them; the hook's are always read
    flight_recorder: bool = True
    # where ranks keep trace rings beside /dev/shm: looked into for those that ended before they were met
    trace_folders: tuple[str, ...] = ()
    # the span of the samples that tell frozen from slow
    watch: Annotated[Duration, msgspec.Meta(ge=0, le=60)] = 2.0
    # processes dumped at once. auto: as many as cores, at most 4
    workers: Literal["auto"] | Annotated[int, msgspec.Meta(ge=1, le=64)] = "auto"


class StallConfig(Section, frozen=True, kw_only=True):
    """The section `stall`: when a quiet run counts as stalled."""

    # auto: 5 times the 99th percentile of the run's own gaps, 30s to 4m; a number is obeyed, unless the run's own signs of progress come more seldom
    timeout: Literal["auto"] | PositiveDuration = "auto"
    # for a rank that works while others wait, and writes no checkpoint. auto: 4 times the timeout, at least 5m
    busy_timeout: Literal["auto"] | PositiveDuration = "auto"
    # before the first step
    init_timeout: PositiveDuration = 300.0
    # between two looks at all jobs
    interval: Annotated[Duration, msgspec.Meta(ge=0.5, le=60)] = 5.0
    # names of jobs whose work it is to idle (notebooks, servers); * stands for anything
    exclude: tuple[str, ...] = ("ipykernel_launcher",)


class GoodputConfig(Section, frozen=True, kw_only=True):
    """The section `goodput`: what a running job loses."""

    # sample the stacks of running ranks now and then, and tell which rank the others wait for; no rank is stopped
    stragglers: bool = True
    # between two samples of a steady run; one that becomes slower is sampled at once
    interval: Annotated[Duration, msgspec.Meta(ge=5, le=86400)] = 300.0
    # send each channel a summary of every run that ends: where its GPU time went, and which ranks were waited for
    summary: bool = False
    # keep the history of each run's loss, step time and other figures, and find events in it: NaN, spikes, a lower throughput
    history: bool = True
    # after the end of a run for which its history is kept
    history_age: Annotated[Duration, msgspec.Meta(ge=3600, le=30 * 86400)] = 7 * 86400.0


class ClusterConfig(Section, frozen=True, kw_only=True):
    """The section `cluster`: how agents of several nodes reach each other; without a key or certificates each works alone."""

    # the same file on all nodes, at least 32 random bytes, closed to others: openssl rand -hex 32
    key_file: Path | None = None
    # in place of the key: a certificate of this node's own, PEM, with `key` and `ca`
    certificate: Path | None = None
    # of the certificate; chmod 600, without a password
    key: Path | None = None
    # who has signed the certificates of all nodes
    ca: Path | None = None
    # who coordinates: the first of these that answers. host, host:port, node[1-4]; none: each run's own nodes, as Slurm
    # or MASTER_ADDR say
    peers: tuple[str, ...] = ()
    # where other agents reach this one; they expect the same port unless told
    listen: str = "0.0.0.0:9754"
    # where other agents may be, like 10.1.0.0/16; none, with peers: anywhere but link-local
    networks: tuple[str, ...] = ()
    # between two announcements
    interval: Annotated[Duration, msgspec.Meta(ge=0.5, le=60)] = 2.0
    # where nodes stand, to tell what suspects share: {rack07: 'node[001-016]', rack08: 'node[017-032]'}
    topology: dict[str, str] = {}


class MetricsConfig(Section, frozen=True, kw_only=True):
    """The section `metrics`: what Prometheus gets."""

    # series of one scrape at most; over it the least important families are left out, ranks' first
    series_budget: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 5000


class MemoryConfig(Section, frozen=True, kw_only=True):
    """The section `memory`: when memory of the host, of control groups or of ranks raises an alert."""

    # look at it; without it no alarm of memory
    watch: bool = True
    # between two looks
    interval: Annotated[Duration, msgspec.Meta(ge=1, le=600)] = 10.0
    # the alarm comes when at this pace memory lasts no longer
    alarm: PositiveDuration = 1800.0
    # each rank's share of shared pages as well: dear for large processes, once a minute
    pss: bool = False


class HealthConfig(Section, frozen=True, kw_only=True):
    """The section `health`: when a component of the node counts as unhealthy."""

    # GPUs that must be there. auto: those that were seen before
    gpus: Literal["auto"] | Annotated[int, msgspec.Meta(ge=0, le=1024)] = "auto"
    # mldebug/hardware/health/thresholds.yaml says what each does and where it comes from; null turns a rule off
    thresholds: Thresholds = Thresholds()


class EventsConfig(Section, frozen=True, kw_only=True):
    """The section `events`: what is sent to all channels."""

    # for how long something must be wrong before anybody is told; incidents of jobs are told at once
    pending: Annotated[Duration, msgspec.Meta(ge=0)] = 30.0
    # where a browser finds a report: https://…/{report}; "": messages name the command that shows it
    link: str = ""


class ActionsConfig(Section, frozen=True, kw_only=True):
    """The section `actions`: what is done about events; nothing that may harm a job or a node without `allow`."""

    # by name: {save: {kind: capture}, stop: {kind: scancel}}
    steps: Annotated[
        dict[str, Plugin], PluginKind(lambda: names("actions"), lambda kind: load("actions", kind))
    ] = {}
    # by kind of event, the steps in their order; '*' for all that have none: {stall: [save, stop]}
    chains: dict[str, tuple[str, ...]] = {}
    # kinds that may run although they may harm: command, signal, scancel, drain
    allow: tuple[Literal["command", "signal", "scancel", "drain"], ...] = ()
    # tell what would be done, and do nothing
    dry_run: bool = False
    # a step does not run again for the same job within this time
    cooldown: Annotated[Duration, msgspec.Meta(ge=0, le=86400)] = 600.0
    # of each step
    hourly: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option, what is wrong with it) for chains of actions that name an unknown step, or one step twice: the types of the
        options cannot exclude that.
        """
        for kind, steps in self.chains.items():
            for name in steps:
                if name not in self.steps:
                    have = ", ".join(self.steps) or "none"
                    yield "chains", f"{kind} names {name!r}, which is no step; steps: {have}"
            if len(set(steps)) < len(steps):
                yield "chains", f"{kind} names a step twice"


class ProbesConfig(Section, frozen=True, kw_only=True):
    """The section `probes`: short measurements that the agent starts by itself, only while no job is on the node."""

    # between two; a job that comes ends one that runs
    every: Literal["never"] | Annotated[Duration, msgspec.Meta(ge=600, le=30 * 86400)] = "never"
    # for so long no job must have been here
    idle: Annotated[Duration, msgspec.Meta(ge=1, le=86400)] = 600.0
    # a Python with PyTorch. It runs as the agent's user: let only root be able to change it. auto: mldebug's own
    python: Literal["auto"] | Path = "auto"
    # auto: GPUs where there are any
    device: Literal["auto", "cuda", "cpu"] = "auto"
    # which collectives
    ops: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter")
    # payloads of each collective: 1KiB, or 1KiB-1GiB for each doubling
    sizes: tuple[str, ...] = ("1MiB", "256MiB")
    # of one measurement
    duration: Annotated[Duration, msgspec.Meta(ge=5, le=600)] = 60.0


class ExpectedJob(Section, frozen=True, kw_only=True):
    """A job that must be running or queued; * matches anything, and a field that is left out matches all."""

    # of the job
    name: str = ""
    # whose it is
    user: str = ""
    # 17, or 17_3 of an array; 17 fits all of its tasks
    id: str = ""
    # which of the section `schedulers`; may be left out where there is only one
    scheduler: str = ""


class JobsConfig(Section, frozen=True, kw_only=True):
    """The section `jobs`: jobs that should be there, and leftovers of jobs that are gone."""

    # by name of the watch: {pretrain: {name: my-training-10b, user: ada}}; needs a scheduler
    expected: dict[str, ExpectedJob] = {}
    # so long before its time limit ends an expected job, somebody is told
    before_limit: PositiveDuration = 900.0
    # look for processes whose job is gone; none is ended
    orphans: bool = True
    # for so long a job's processes may take to end
    orphan_grace: PositiveDuration = 120.0


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration of mldebug."""

    agent: AgentConfig = msgspec.field(default_factory=AgentConfig)
    capture: CaptureConfig = CaptureConfig()
    stall: StallConfig = StallConfig()
    goodput: GoodputConfig = GoodputConfig()
    # formats of training logs, tried before the built-in ones: {mine: {kind: regex, pattern: '…'}}
    logs: Annotated[
        dict[str, Plugin], PluginKind(lambda: names("logs"), lambda kind: load("logs", kind))
    ] = {}
    # how other nodes are reached: {ssh: {kind: ssh, options: '-i ~/.ssh/cluster'}}
    transports: Annotated[
        dict[str, Plugin],
        PluginKind(lambda: names("transports"), lambda kind: load("transports", kind)),
    ] = {}
    # who is told: {ops: {kind: webhook, url: 'https://…'}}
    channels: Annotated[
        dict[str, Plugin],
        PluginKind(lambda: names("channels"), lambda kind: load("channels", kind)),
    ] = {}
    # who is asked whether jobs run: {main: {kind: slurm, only_on: [head01]}}
    schedulers: Annotated[
        dict[str, Plugin],
        PluginKind(lambda: names("schedulers"), lambda kind: load("schedulers", kind)),
    ] = {}
    # vendors whose GPUs are read: {main: {kind: nvidia}}; none: every vendor whose library is on this node
    gpus: Annotated[
        dict[str, Plugin], PluginKind(lambda: names("gpus"), lambda kind: load("gpus", kind))
    ] = {}
    jobs: JobsConfig = JobsConfig()
    events: EventsConfig = EventsConfig()
    actions: ActionsConfig = ActionsConfig()
    cluster: ClusterConfig = ClusterConfig()
    fleet: FleetConfig = FleetConfig()
    hub: HubConfig = HubConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    memory: MemoryConfig = MemoryConfig()
    metrics: MetricsConfig = MetricsConfig()
    health: HealthConfig = HealthConfig()
    probes: ProbesConfig = ProbesConfig()
    trees: DirSizesConfig = DirSizesConfig()
    storage: StorageConfig = StorageConfig()


def load_config(path: Path | None) -> Config:
    """The configuration in the file `path`, or the defaults for None. Raises ConfigError with all problems at once."""
    if path is None:
        return Config()
    config = parse(_read(path), str(path), Config)
    if problems := [f"{path}: {one}" for one in _unwatched(config)]:
        raise ConfigError(problems, "see docs/scheduler.md")
    return config


def _unwatched(config: Config) -> Iterator[str]:
    """Jobs that nobody would be asked about: silence would look like all is well; schedulers that every node would ask."""
    known = ", ".join(config.schedulers)
    for name, plugin in config.schedulers.items():
        if not plugin.options.only_on:
            yield f"schedulers.{name}.only_on: name the one node whose agent asks (by its host name): 1,000 agents would overload the controller"
    for name, one in config.jobs.expected.items():
        where = f"jobs.expected.{name}"
        if not config.schedulers:
            yield f"{where}: there is no scheduler to ask; write `schedulers: {{main: {{kind: slurm, only_on: [HOST]}}}}`"
        elif one.scheduler and one.scheduler not in config.schedulers:
            yield f"{where}.scheduler: {one.scheduler} is no scheduler; choose from: {known}"
        elif not one.scheduler and len(config.schedulers) > 1:
            yield f"{where}: has no scheduler; choose from: {known}"
        if not (one.name or one.user or one.id):
            yield f"{where}: fits every job; write a name, user or id"


def effective_yaml(config: Config) -> str:
    """The whole configuration, defaults included, as YAML that reads back as the same value."""
    return yaml.safe_dump(
        _plain(config), sort_keys=False, default_flow_style=False, allow_unicode=True
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            [f"{path}: cannot be read: {error.strerror or error}"], "check the path and its rights"
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            [f"{path}: is larger than {MAX_BYTES // 1024} KiB"], "is this the right file?"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"{path}:{line}: is not UTF-8 text"], "save the file as UTF-8"
        ) from error


def _plain(section: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.fields(section)
    return {field.name: _plain_value(getattr(section, field.name), field.type) for field in fields}


def _plain_value(value: Any, kind: Any) -> Any:
    if isinstance(value, Plugin):
        return {"kind": value.kind, **_plain(value.options)}
    if isinstance(value, msgspec.Struct):
        return _plain(value)
    if isinstance(value, dict):
        return {key: _plain_value(item, None) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    marks = [mark for _, meta in members(*unwrap(kind)) for mark in meta]
    if isinstance(value, float) and SECONDS in marks:
        return format_duration(value)
    if isinstance(value, int) and SIZE in marks:
        return format_size(value)
    return [_plain_value(item, None) for item in value] if isinstance(value, tuple) else value
