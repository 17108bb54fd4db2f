"""Memory of the host, of the ranks' control groups and of the ranks: in use, growth, and time to the end."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.hardware.host_memory.parse import RankMemory
from mldebug.hardware.host_memory.state import LevelState
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Importance,
    MetricGroup,
    Sample,
    known,
)

UNREAD = "where it cannot be read, and for control groups without a limit"
TABLE = FamilyTable(absent=UNREAD, importance=Importance.RUN)
# of one limit: the host's own, or that of a control group with ranks below it
LEVEL = TABLE.labelled("scope", "cgroup")
LIMIT = LEVEL.gauge(
    "memory_limit_bytes",
    "What may be used: all memory of the host (scope host), or the limit of a control group.",
)
USED = LEVEL.gauge(
    "memory_used_bytes",
    "In use, without what the kernel takes back by itself (page cache, reclaimable slab).",
)
CACHED = LEVEL.gauge("memory_reclaimable_bytes", "What the kernel takes back by itself.")
HIGH = LEVEL.gauge(
    "memory_high_bytes",
    "From where on a control group is slowed down.",
    absent="where memory.high is not set, and in version 1",
)
GROWTH = LEVEL.gauge(
    "memory_growth_bytes_per_second",
    "How fast the lows of the use rise; 0 where they do not.",
    absent="in the first 2 minutes",
)
LEFT = LEVEL.gauge(
    "memory_oom_seconds",
    "Time until the limit is reached at that pace.",
    absent="where nothing grows, and in the first 2 minutes",
)
ALARM = LEVEL.gauge(
    "memory_alarm",
    "1 where the end is nearer than memory.alarm, or 95 % of the limit are in use, else 0.",
)
KILLS = TABLE.counter(
    "memory_oom_kills",
    "Processes that the kernel has killed in a control group for want of memory.",
    "cgroup",
)
RANK = TABLE.gauge(
    "memory_rank_bytes",
    "Memory of a rank: anon and shmem (its own), file (mapped, can be read again: no leak), swap, pss (its share of"
    " all, where memory.pss is set).",
    "run",
    "rank",
    "kind",
    absent="where /proc/PID/status cannot be read",
    importance=Importance.RANK,
)
RANK_GROWTH = TABLE.gauge(
    "memory_rank_growth_bytes_per_second",
    "How fast the lows of a rank's anon, shmem and swap rise.",
    "run",
    "rank",
    absent="in the first 2 minutes of a rank",
    importance=Importance.RANK,
)
UNREADABLE = TABLE.gauge(
    "memory_unread",
    "Ranks and control groups (kind rank, cgroup) whose memory could not be read: a limit there is not known.",
    "kind",
    absent="where memory.watch is off",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The memory of the host, of control groups and of ranks as read last."""
    if snapshot.memory is None:
        return
    yield Sample(UNREADABLE, ("rank",), snapshot.memory.unread)
    yield Sample(UNREADABLE, ("cgroup",), len(snapshot.memory.gaps))
    for level in snapshot.memory.levels:
        yield from _level(level)
    runs = {run.id for run in snapshot.runs}
    for rank in snapshot.memory.ranks:
        if rank.run in runs:
            yield from _rank(rank)


def _level(one: LevelState) -> Iterator[Sample]:
    level = one.level
    key = level.scope, level.name
    yield from known(key, (LIMIT, level.limit), (USED, level.used), (CACHED, level.cached))
    yield from known(key, (HIGH, level.high), (GROWTH, one.growth), (LEFT, one.seconds_left))
    yield Sample(ALARM, key, int(one.alarm))
    yield from known((level.name,), (KILLS, level.oom_kills))


def _rank(one: RankMemory) -> Iterator[Sample]:
    key = one.run, str(one.rank)
    for kind in ("anon", "shmem", "file", "swap", "pss"):
        yield from known((*key, kind), (RANK, getattr(one, kind)))
    yield from known(key, (RANK_GROWTH, one.growth))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `memory`: memory of the host, of the ranks' control groups and of the ranks: in use, growth, and time to the end."""
    return MetricGroup(TABLE.families, samples)
