"""How long the ranks of a run wait for each other, and what a run loses by it."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

TABLE = FamilyTable(
    absent="until its ranks were sampled, and where not all of them are on this node",
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


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """What the last row of stack samples of each run has shown."""
    for run in snapshot.runs:
        if run.slowness is None:
            continue
        yield Sample(LOSS, (run.id,), run.slowness.loss)
        for one in run.slowness.shares:
            yield Sample(WAITING, (run.id, str(one.rank)), one.waiting)


def create(options: NoOptions) -> MetricGroup:
    """Build the group."""
    return MetricGroup(TABLE.families, samples)
