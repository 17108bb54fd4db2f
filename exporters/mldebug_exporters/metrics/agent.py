"""The agent itself: build, cost, and how its sources do."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, MetricGroup, Sample, known

TABLE = FamilyTable()
BUILD = TABLE.info("build", "Version of the agent.", "version")
REPLAY = TABLE.info(
    "replay",
    "All other values are of a recording that `mldebug agent --replay` plays back, and of no live node.",
    "recording",
    absent="on a live node",
)
AT = TABLE.gauge(
    "snapshot_timestamp_seconds",
    "Unix time of the snapshot that all these values are of; where it stays behind, the agent's main loop hangs.",
)
STARTED = TABLE.gauge("agent_start_time_seconds", "Unix time of the agent's start.")
CPU = TABLE.counter("agent_cpu_seconds", "CPU time of the agent's own process.")
RSS = TABLE.gauge(
    "agent_resident_memory_bytes",
    "Resident memory of the agent's own process.",
    absent="where /proc cannot be read",
)
CHILDREN = TABLE.gauge(
    "agent_children",
    "Processes that the agent has started and that live, their own children included.",
    absent="before the first count, and where the kernel does not list children",
)
CHILDREN_CPU = TABLE.counter(
    "agent_children_cpu_seconds",
    "CPU time of the agent's children, living and gone: the stack sampler is one of them.",
    absent="before the first count, and where the kernel does not list children",
)
WITH_CHILDREN = TABLE.gauge(
    "agent_with_children_memory_bytes",
    "Memory of the agent and its living children together. They are forks, so a page that they share counts once"
    " (the sum of their Pss); a child that is stuck in the kernel is not looked at.",
    absent="before the first count, and where the kernel does not list children or does not tell smaps_rollup",
)
LOST = TABLE.counter(
    "reports_lost", "Reports and states that could not be stored since the agent's start."
)
WAITING = TABLE.gauge(
    "reports_waiting", "Reports in memory because the state dir does not take them at present."
)
LOSSES = TABLE.counter(
    "state_dir_losses",
    "Times that the state dir was removed or replaced while the agent ran; it was begun anew.",
)
GAPS = TABLE.gauge(
    "agent_gaps",
    "What the agent could not read at its last look, mostly for want of rights: `mldebug doctor` says what.",
)
UNANSWERED = TABLE.counter(
    "unanswered",
    "Questions about collectives without an answer that is believed, and files that were refused, by way: Flight Recorders by the hook, worker"
    " server, dump file and debug FIFO, and NCCL RAS. The gaps of a report say what was wrong.",
    "way",
)
SUCCESS = TABLE.gauge("source_success", "1 where the source's last round went well.", "source")
SECONDS = TABLE.gauge("source_duration_seconds", "Duration of the source's last round.", "source")
STUCK = TABLE.gauge("source_stuck", "1 while a round of the source is past its deadline.", "source")
WELL = TABLE.gauge(
    "source_last_success_timestamp_seconds",
    "Unix time at which the source's last round ended that went well.",
    "source",
    absent="before the first one since the agent's start",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The agent's version, start, CPU time, memory, children and workers."""
    yield Sample(BUILD, (snapshot.version,))
    if snapshot.replay:
        yield Sample(REPLAY, (snapshot.replay,))
    yield Sample(AT, (), snapshot.at)
    yield Sample(STARTED, (), snapshot.started_at)
    yield Sample(CPU, (), snapshot.cpu_seconds)
    if snapshot.rss_bytes:
        yield Sample(RSS, (), snapshot.rss_bytes)
    if snapshot.children is not None:
        yield Sample(CHILDREN, (), snapshot.children.count)
        yield Sample(CHILDREN_CPU, (), snapshot.children.cpu_seconds)
        yield from known((), (WITH_CHILDREN, snapshot.children.memory_bytes))
    yield Sample(LOST, (), snapshot.reports_lost)
    yield Sample(WAITING, (), snapshot.reports_waiting)
    yield Sample(LOSSES, (), snapshot.state_dir_losses)
    yield Sample(GAPS, (), len(snapshot.gaps))
    for way, count in snapshot.unanswered.items():
        yield Sample(UNANSWERED, (way,), count)
    for source in snapshot.sources:
        yield Sample(SUCCESS, (source.name,), int(source.success))
        yield Sample(SECONDS, (source.name,), source.seconds)
        yield Sample(STUCK, (source.name,), int(source.stuck))
        yield from known((source.name,), (WELL, source.last_success))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `agent`: the agent itself: build, cost, and how its sources do."""
    return MetricGroup(TABLE.families, samples)
