"""The trace rings of ranks: how old the newest record of each is."""

from collections.abc import Iterator

import msgspec

from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import Family, Importance, Sample

AGE = Family(
    name="mldebug_trace_ring_age_seconds",
    kind="gauge",
    help="Seconds since the newest record in the trace ring of a rank: a traced rank that does nothing, or only what is not followed,"
    " writes none.",
    labels=("run", "rank"),
    absent="for ranks that are not traced, whose ring is empty or cannot be read, and that have ended",
    importance=Importance.RANK,
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class TraceMetrics:
    """One sample for each traced rank."""

    families = (AGE,)

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """Nothing of runs that are not traced."""
        for run in snapshot.runs:
            for rank, written in sorted(run.traced.items()):
                age = max(0.0, snapshot.at - written)
                yield Sample(AGE, (run.id, str(rank)), round(age, 3))


def create(options: Options) -> TraceMetrics:
    """Build the group."""
    return TraceMetrics()
