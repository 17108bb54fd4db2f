"""What the GPU time of a run was used for, how long its ranks wait for each other, and what it loses by it."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

TABLE = FamilyTable(
    absent="until its ranks were sampled, and where they stand on several nodes whose agents do not know each other",
    importance=Importance.RUN,
)
WAITING = TABLE.gauge(
    "rank_waiting_ratio",
    "Share of the time that a rank waits for others, by samples of its stack. The one that waits least is waited for.",
    "run",
    "rank",
    importance=Importance.RANK,
)
LOSS = TABLE.gauge(
    "run_straggler_loss_ratio",
    "Share of the time that the ranks of a run wait for its slow ranks; 0 where none slows the others down.",
    "run",
)
USES = FamilyTable(importance=Importance.DETAIL)  # eleven of a run: they push out no stall of it
USED = USES.counter(
    "run_gpu_seconds",
    "Seconds of the run's GPUs on this node by what they were used for, one GPU per rank: each second has one state, so their sum"
    " is the wall time. What may still turn out to be a stall or a checkpoint is not counted yet: two minutes, without a step up to 30.",
    "run",
    "state",
    absent="until the run was looked at, and when it has ended",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """Yield the GPU seconds of each run by use and, where its ranks were sampled, what it loses by slow ranks and how long
    each rank waits.
    """
    for run in snapshot.runs:
        for state, seconds in run.gpu_seconds.items():
            yield Sample(USED, (run.id, state), seconds)
        if run.slowness is None:
            continue
        yield Sample(LOSS, (run.id,), run.slowness.loss)
        for one in run.slowness.shares:
            if one.node in ("", snapshot.node):  # the others have agents of their own
                yield Sample(WAITING, (run.id, str(one.rank)), one.waiting)


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `goodput`: what the GPU time of a run was used for, how long its ranks wait for each other, and what it loses by it."""
    return MetricGroup((*TABLE.families, *USES.families), samples)
