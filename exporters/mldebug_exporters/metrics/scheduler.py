"""Metrics of batch schedulers: expected jobs, time limits, drained nodes, failed queries, processes whose job is gone."""

from collections import Counter
from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.jobs.schedulers.model import SchedulerState
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Importance,
    MetricGroup,
    Sample,
    known,
)

BEFORE = "before the first good answer"

TABLE = FamilyTable(absent=BEFORE, importance=Importance.RUN)
POLLED = TABLE.labelled("scheduler")
MISSING = POLLED.gauge(
    "scheduler_job_missing", "1 where an expected job is neither running nor queued.", "watch"
)
JOBS = POLLED.gauge(
    "scheduler_jobs",
    "Jobs that an entry of jobs.expected fits, by state: running, queued, suspended, ending, over.",
    "watch",
    "state",
    absent="while none is in that state",
)
PENDING = POLLED.gauge(
    "scheduler_pending_seconds",
    "Since when the oldest of the queued jobs waits.",
    "watch",
    absent="while none is queued",
)
LEFT = POLLED.gauge(
    "scheduler_time_limit_left_seconds",
    "Until a time limit ends the first of the running jobs.",
    "watch",
    absent="while none runs that has a limit",
)
BLOCKED = POLLED.gauge(
    "scheduler_jobs_blocked", "Queued jobs that will not start by themselves.", "watch"
)
NODES = POLLED.gauge(
    "scheduler_nodes_out",
    "Nodes that take no jobs, by state.",
    "state",
    absent="while there is none in that state",
)
SUCCESS = POLLED.gauge(
    "scheduler_last_success_timestamp_seconds", "Unix time of the last good answer."
)
FAILURES = POLLED.counter(
    "scheduler_failures",
    "Questions without a good answer since the agent's start, by reason.",
    "reason",
    absent="while there was none for that reason",
)
ORPHANS = TABLE.gauge(
    "orphan_processes", "Processes whose job is gone.", absent="where they are not looked for"
)
ORPHAN_BYTES = TABLE.gauge(
    "orphan_gpu_memory_bytes",
    "GPU memory that such processes hold.",
    "uuid",
    absent="while they hold none there, or it is not told",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """Jobs that should exist, by the scheduler's last answer; durations end now."""
    for scheduler in snapshot.schedulers:
        if scheduler.asks:
            yield from _asking(scheduler)
            yield from _watched(scheduler, snapshot.at)
    if snapshot.orphans is None:
        return
    yield Sample(ORPHANS, (), len(snapshot.orphans))
    held: Counter[str] = Counter()
    for orphan in snapshot.orphans:
        held.update({uuid: amount for uuid, amount in orphan.gpu_bytes.items() if amount})
    for uuid, amount in held.items():
        yield Sample(ORPHAN_BYTES, (uuid,), amount)


def _asking(state: SchedulerState) -> Iterator[Sample]:
    yield from known((state.name,), (SUCCESS, state.success_at))
    for reason, count in state.failures.items():
        yield Sample(FAILURES, (state.name, reason), count)
    for word, count in Counter(node.state for node in state.nodes).items():
        yield Sample(NODES, (state.name, word), count)


def _watched(state: SchedulerState, now: float) -> Iterator[Sample]:
    for one in state.watched:
        whose = (state.name, one.name)
        yield Sample(MISSING, whose, float(one.missing))
        yield Sample(BLOCKED, whose, len(one.blocked))
        for standing, count in one.counts.items():
            yield Sample(JOBS, (*whose, standing), count)
        if one.waits_since is not None:
            yield Sample(PENDING, whose, max(0.0, now - one.waits_since))
        if one.ends is not None:
            yield Sample(LEFT, whose, max(0.0, one.ends - now))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `scheduler`: expected jobs, time limits, drained nodes, failed queries, processes whose job is gone."""
    return MetricGroup(TABLE.families, samples)
