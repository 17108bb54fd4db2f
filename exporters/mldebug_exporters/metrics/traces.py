"""The trace rings of ranks: how old the newest record of each is."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

TABLE = FamilyTable("run", "rank", importance=Importance.RANK)
AGE = TABLE.gauge(
    "trace_ring_age_seconds",
    "Seconds since the newest record in the trace ring of a rank: a traced rank that does nothing, or only what is not followed,"
    " writes none.",
    absent="for ranks that are not traced, whose ring is empty or cannot be read, and that have ended",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The age of the newest record of each traced rank, seconds; none for runs that are not traced."""
    for run in snapshot.runs:
        for rank, written in sorted(run.traced.items()):
            age = max(0.0, snapshot.at - written)
            yield Sample(AGE, (run.id, str(rank)), round(age, 3))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `traces`: the trace rings of ranks: how old the newest record of each is."""
    return MetricGroup(TABLE.families, samples)
