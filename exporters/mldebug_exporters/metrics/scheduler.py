"""Schedulers: expected jobs, time limits, nodes that take no jobs, how asking goes; and processes whose job is gone."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from mldebug.jobs.schedulers.model import SchedulerState
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import Family, Importance, Sample

BEFORE = "before the first good answer"
WATCH = ("scheduler", "watch")


def _gauge(name: str, help_: str, labels: tuple[str, ...], absent: str) -> Family:
    return Family(
        name=f"mldebug_{name}",
        kind="gauge",
        help=help_,
        labels=labels,
        absent=absent,
        importance=Importance.RUN,
    )


MISSING = _gauge("scheduler_job_missing", "1 where an expected job is neither running nor queued.", WATCH, BEFORE)  # fmt: skip
JOBS = _gauge(
    "scheduler_jobs",
    "Jobs that an entry of jobs.expected fits, by state: running, queued, suspended, ending, over.",
    (*WATCH, "state"),
    "while none is in that state",
)
PENDING = _gauge("scheduler_pending_seconds", "Since when the oldest of the queued jobs waits.", WATCH, "while none is queued")  # fmt: skip
LEFT = _gauge(
    "scheduler_time_limit_left_seconds",
    "Until a time limit ends the first of the running jobs.",
    WATCH,
    "while none runs that has a limit",
)
BLOCKED = _gauge("scheduler_jobs_blocked", "Queued jobs that will not start by themselves.", WATCH, BEFORE)  # fmt: skip
NODES = _gauge("scheduler_nodes_out", "Nodes that take no jobs, by state.", ("scheduler", "state"), "while there is none in that state")  # fmt: skip
SUCCESS = _gauge("scheduler_last_success_timestamp_seconds", "Unix time of the last good answer.", ("scheduler",), BEFORE)  # fmt: skip
FAILURES = Family(
    name="mldebug_scheduler_failures",
    kind="counter",
    help="Questions without a good answer since the agent's start, by reason.",
    labels=("scheduler", "reason"),
    absent="while there was none for that reason",
    importance=Importance.RUN,
)
ORPHANS = _gauge("orphan_processes", "Processes whose job is gone.", (), "where they are not looked for")  # fmt: skip
ORPHAN_BYTES = _gauge(
    "orphan_gpu_memory_bytes", "GPU memory that such processes hold.", ("uuid",), "while they hold none there, or it is not told"
)  # fmt: skip


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class SchedulerMetrics:
    """Of the schedulers that this agent asks."""

    families = (MISSING, JOBS, PENDING, LEFT, BLOCKED, NODES, SUCCESS, FAILURES, ORPHANS, ORPHAN_BYTES)  # fmt: skip

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """Expected jobs as of the last good answer; spans up to now."""
        for one in snapshot.schedulers:
            if one.asks:
                yield from _asking(one)
                yield from _watched(one, snapshot.at)
        if snapshot.orphans is None:
            return
        yield Sample(ORPHANS, (), len(snapshot.orphans))
        held: Counter[str] = Counter()
        for orphan in snapshot.orphans:
            held.update({uuid: amount for uuid, amount in orphan.gpu_bytes.items() if amount})
        for uuid, amount in held.items():
            yield Sample(ORPHAN_BYTES, (uuid,), amount)


def _asking(state: SchedulerState) -> Iterator[Sample]:
    if state.success_at is not None:
        yield Sample(SUCCESS, (state.name,), state.success_at)
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


def create(options: Options) -> SchedulerMetrics:
    """Build the group."""
    return SchedulerMetrics()
