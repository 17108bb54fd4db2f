"""Sizes of the directories of the section `trees`, and how they are known."""

from functools import partial

from mldebug.core.plugins import NoOptions
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Importance,
    MetricGroup,
    storage_measures,
)

_UNKNOWN = "until it was counted once, and while it does not answer"

TABLE = FamilyTable("path", absent=_UNKNOWN, importance=Importance.RUN)
TABLE.gauge(
    "tree_bytes",
    "Allocated bytes below a directory, on its own filesystem (as `du -x`); a hard link counts once.",
)
TABLE.gauge(
    "tree_apparent_bytes",
    "Lengths of all files below a directory: more than their bytes where they are sparse.",
)
TABLE.gauge(
    "tree_inodes", "Files and folders below a directory, itself included (as `du --inodes`)."
)
TABLE.gauge(
    "tree_unread_entries",
    "Folders and names below it that could not be looked at: with any, the figures are lower bounds.",
)
TABLE.gauge("tree_timestamp_seconds", "Unix time of which the figures are true.")
TABLE.counter(
    "tree_lost_events", "Times that the kernel dropped events, since the tree was counted first."
)
TABLE.counter("tree_rescans", "Times that all, or all that is not watched, was counted anew.")
TABLE.gauge(
    "tree_state",
    "1 for how a tree is known: counting (the first time), watched (by events), partly_watched, rescanned, events_lost, stuck.",
    "how",
    absent="where no tree is configured",
)


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `trees`: sizes of the directories of the section `trees`, and how they are known."""
    return MetricGroup(TABLE.families, partial(storage_measures, TABLE.families))
