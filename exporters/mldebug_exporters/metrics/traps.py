"""Known traps that the runs on this node sit in: versions, settings, log lines."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

TABLE = FamilyTable("run", "trap", importance=Importance.DETAIL)
TRAPS = TABLE.gauge(
    "run_known_traps",
    "How often a known trap is found in the run: mostly once, more often where ranks run different versions. The names"
    " stand in known-traps.md. Not an alarm: most such runs go well.",
    absent="while the run does not sit in that trap, or nothing is known of it; and when the run has ended",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """How often each known issue occurs in each run; nothing for issues that do not."""
    for run in snapshot.runs:
        counts: dict[str, int] = {}
        for trap in run.traps:
            counts[trap.name] = counts.get(trap.name, 0) + 1
        for name, count in counts.items():
            yield Sample(TRAPS, (run.id, name), count)


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `traps`: known traps that the runs on this node sit in: versions, settings, log lines."""
    return MetricGroup(TABLE.families, samples)
