"""Checkpoints of the runs on this node: the last complete one, what has died, and what would be lost now."""

from collections.abc import Iterator

import msgspec

from mldebug.status.snapshot import Snapshot
from mldebug.storage.checkpoints.history import Kept
from mldebug.storage.checkpoints.model import State
from mldebug.storage.checkpoints.state import SaveState
from mldebug_exporters.exposition.families import Family, Importance, Sample

LABELS = ("run", "folder", "series")
NONE = "while no complete checkpoint is there, or nobody could look"


def save_gauge(name: str, told: str, absent: str = NONE, *labels: str) -> Family:
    """One gauge of each series of checkpoints."""
    return Family(
        name=f"mldebug_checkpoint_{name}",
        kind="gauge",
        help=told,
        labels=(*LABELS, *labels),
        absent=absent,
        importance=Importance.RUN,
    )


COUNT = save_gauge(
    "saves",
    "Checkpoints that are there, by what became of them: complete, incomplete (it died, or was damaged since), writing,"
    " unknown. `run` is empty for a place of the configuration; `series` is the name with # for numbers.",
    "until a run has saved, and when it has ended",
    "state",
)
READABLE = save_gauge(
    "readable",
    "1 where the last look saw the whole folder, 0 where it could not: then nothing is said of what would be lost.",
    COUNT.absent,
)
LAST = save_gauge(
    "last_complete_timestamp_seconds",
    "Unix time at which the last complete checkpoint was finished.",
)
SIZE = save_gauge("last_complete_size_bytes", "Size of the last complete checkpoint.")
SHARDS = save_gauge("last_complete_shards", "Files with tensors in the last complete checkpoint.")
STEP = save_gauge(
    "last_complete_step",
    "Step of the last complete checkpoint.",
    f"{NONE}, and where no step is known",
)
TOOK = save_gauge(
    "save_duration_seconds",
    "How long the last complete checkpoint took, from its first file or from when it was first seen.",
    f"{NONE}, and where nothing tells when it was begun",
)
RATE = save_gauge(
    "save_bytes_per_second", "Throughput of the last complete checkpoint.", TOOK.absent
)
CHANGE = save_gauge(
    "size_change_ratio",
    "Size of the last complete checkpoint against the median of up to 5 before it, minus 1: 0.05 is 5 % larger.",
    "before the second complete checkpoint",
)
PERIOD = save_gauge("period_seconds", "Time between two checkpoints, the median of the last.", "before the third complete checkpoint")  # fmt: skip
LOST = save_gauge("work_lost_seconds", "Time since the last complete checkpoint was begun: what is lost if the run ends now.")  # fmt: skip
STEPS = save_gauge("work_lost_steps", "The same in steps.", STEP.absent)
LEFT = save_gauge("leftover_bytes", "Bytes of incomplete checkpoints that nobody writes any more.", COUNT.absent)  # fmt: skip
GROWS = save_gauge(
    "writing_bytes", "Size so far of a checkpoint that is being written.", "while none is"
)
SKEW = save_gauge("clock_skew_seconds", "Seconds by which the file system's clock is ahead of this node's.", COUNT.absent)  # fmt: skip
TROUBLES = Family(
    name="mldebug_checkpoint_look_troubles",
    kind="counter",
    help="Looks at checkpoints that could not see all: stuck (no answer), denied, cut (more than is looked at), gone"
    " (changed while it was read), mount (another file system lies in it), unreadable (the folder), unread (a file in it).",
    labels=("reason",),
    absent="of a reason that was not met",
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class CheckpointMetrics:
    """What is known of each series."""

    families = (COUNT, READABLE, LAST, SIZE, SHARDS, STEP, TOOK, RATE, CHANGE, PERIOD, LOST, STEPS, LEFT, GROWS, SKEW, TROUBLES)  # fmt: skip

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """Those of each run, those of the configuration, and what could not be seen."""
        for one in (*snapshot.saves, *(it for run in snapshot.runs for it in run.saves)):
            yield from _series(one)
        for reason, count in sorted(snapshot.save_troubles.items()):
            yield Sample(TROUBLES, (reason,), count)


def _series(one: SaveState) -> Iterator[Sample]:
    key = one.run, one.folder, one.series
    for state in State:
        yield Sample(COUNT, (*key, state.value), one.counts.get(state.value, 0))
    yield Sample(READABLE, key, int(not one.trouble))
    yield Sample(LEFT, key, one.left_bytes)
    yield Sample(SKEW, key, one.skew)
    if one.newest is not None and one.newest.state is State.WRITING:
        yield Sample(GROWS, key, one.newest.size)
    known = ((CHANGE, one.size_change), (PERIOD, one.period), (LOST, one.lost_seconds), (STEPS, one.lost_steps))  # fmt: skip
    for family, value in (*known, *(_last(one.last) if one.last and not one.trouble else ())):
        if value is not None:
            yield Sample(family, key, value)


def _last(last: Kept) -> Iterator[tuple[Family, float | None]]:
    yield LAST, last.ended
    yield SIZE, last.size
    yield SHARDS, last.shards
    yield STEP, last.step
    yield TOOK, last.seconds
    yield RATE, last.rate


def create(options: Options) -> CheckpointMetrics:
    """Build the group."""
    return CheckpointMetrics()
