"""Who writes: bytes of each rank, and how fast the files grow that it holds open."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

TABLE = FamilyTable("run", "rank", importance=Importance.RANK)
TABLE.counter(
    "rank_written_bytes",
    "Bytes that the kernel charges to a rank and its children for writing, less those cancelled, since the agent saw it.",
    absent="before the second look at a rank",
)
TABLE.gauge(
    "rank_file_growth_bytes_per_second",
    "How fast the files grow that a rank and its children hold open for writing, by mount: the four fastest.",
    "mountpoint",
    absent="where none grows",
)
_BY_NAME = {family.name: family for family in TABLE.families}


class WriterMetrics:
    """Measures of the storage monitor about writing ranks."""

    families = TABLE.families

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """One for each of its measures."""
        for one in snapshot.storage.measures if snapshot.storage else ():
            family = _BY_NAME.get(one.metric)
            if family is not None:
                yield Sample(family, one.labels, one.value)


def create(options: NoOptions) -> MetricGroup:
    """Build the group."""
    return WriterMetrics()
