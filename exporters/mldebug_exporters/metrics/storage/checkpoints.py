"""Checkpoints of the runs on this node: the last complete one, what has died, and what would be lost now."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.state import SeriesState
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Importance,
    MetricGroup,
    Sample,
    known,
)

UNSAVED = "until a run has saved, and when it has ended"
NONE = "while no complete checkpoint is there, or nobody could look"

TABLE = FamilyTable(absent=UNSAVED, importance=Importance.RUN)
SERIES = TABLE.labelled("run", "folder", "series")
COUNT = SERIES.gauge(
    "checkpoint_saves",
    "Checkpoints that are there, by what became of them: complete, incomplete (it died, or was damaged since), writing,"
    " unknown. `run` is empty for a place of the configuration; `series` is the name with # for numbers.",
    "state",
)
READABLE = SERIES.gauge(
    "checkpoint_readable",
    "1 where the last look saw the whole folder, 0 where it could not: then nothing is said of what would be lost.",
)
LAST = SERIES.gauge(
    "checkpoint_last_complete_timestamp_seconds",
    "Unix time at which the last complete checkpoint was finished.",
    absent=NONE,
)
SIZE = SERIES.gauge(
    "checkpoint_last_complete_size_bytes", "Size of the last complete checkpoint.", absent=NONE
)
SHARDS = SERIES.gauge(
    "checkpoint_last_complete_shards",
    "Files with tensors in the last complete checkpoint.",
    absent=NONE,
)
STEP = SERIES.gauge(
    "checkpoint_last_complete_step",
    "Step of the last complete checkpoint.",
    absent=f"{NONE}, and where no step is known",
)
TOOK = SERIES.gauge(
    "checkpoint_save_duration_seconds",
    "How long the last complete checkpoint took, from its first file or from when it was first seen.",
    absent=f"{NONE}, and where nothing tells when it was begun",
)
RATE = SERIES.gauge(
    "checkpoint_save_bytes_per_second",
    "Throughput of the last complete checkpoint.",
    absent=TOOK.absent,
)
CHANGE = SERIES.gauge(
    "checkpoint_size_change_ratio",
    "Size of the last complete checkpoint against the median of up to 5 before it, minus 1: 0.05 is 5 % larger.",
    absent="before the second complete checkpoint",
)
PERIOD = SERIES.gauge(
    "checkpoint_period_seconds",
    "Time between two checkpoints, the median of the last.",
    absent="before the third complete checkpoint",
)
LOST = SERIES.gauge(
    "checkpoint_work_lost_seconds",
    "Time since the last complete checkpoint was begun: what is lost if the run ends now.",
    absent=NONE,
)
STEPS = SERIES.gauge("checkpoint_work_lost_steps", "The same in steps.", absent=STEP.absent)
LEFT = SERIES.gauge(
    "checkpoint_leftover_bytes", "Bytes of incomplete checkpoints that nobody writes any more."
)
GROWS = SERIES.gauge(
    "checkpoint_writing_bytes",
    "Size so far of a checkpoint that is being written.",
    absent="while none is",
)
SKEW = SERIES.gauge(
    "checkpoint_clock_skew_seconds",
    "Seconds by which the file system's clock is ahead of this node's.",
)
TROUBLES = TABLE.counter(
    "checkpoint_look_troubles",
    "Looks at checkpoints that could not see all: stuck (no answer), denied, cut (more than is looked at), gone"
    " (changed while it was read), mount (another file system lies in it), unreadable (the folder), unread (a file in it).",
    "reason",
    absent="of a reason that was not met",
    importance=Importance.AGENT,
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """Checkpoints of each run and of configured folders, and what could not be read."""
    for one in (
        *snapshot.checkpoint_series,
        *(it for run in snapshot.runs for it in run.checkpoint_series),
    ):
        yield from _series(one)
    for reason, count in sorted(snapshot.checkpoint_troubles.items()):
        yield Sample(TROUBLES, (reason,), count)


def _series(one: SeriesState) -> Iterator[Sample]:
    key = one.run, one.folder, one.series
    for state in Completeness:
        yield Sample(COUNT, (*key, state.value), one.counts.get(state.value, 0))
    yield Sample(READABLE, key, int(not one.trouble))
    yield Sample(LEFT, key, one.left_bytes)
    yield Sample(SKEW, key, one.skew)
    if one.newest is not None and one.newest.state is Completeness.WRITING:
        yield Sample(GROWS, key, one.newest.size)
    yield from known(key, (CHANGE, one.size_change), (PERIOD, one.period))
    yield from known(key, (LOST, one.lost_seconds), (STEPS, one.lost_steps))
    if one.last and not one.trouble:
        last = one.last
        yield from known(key, (LAST, last.ended), (SIZE, last.size), (SHARDS, last.shards))
        yield from known(key, (STEP, last.step), (TOOK, last.seconds), (RATE, last.rate))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `checkpoints`: checkpoints of the runs on this node: the last complete one, what has died, and what would be lost now."""
    return MetricGroup(TABLE.families, samples)
