"""Who writes: bytes of each rank, and how fast the files grow that it holds open."""

from functools import partial

from mldebug.core.plugins import NoOptions
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Importance,
    MetricGroup,
    storage_measures,
)

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


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `writers`: bytes that each rank writes, and how fast the files grow that it holds open."""
    return MetricGroup(TABLE.families, partial(storage_measures, TABLE.families))
