"""Sizes of the directories of the section `trees`, and how they are known."""

from collections.abc import Iterator

import msgspec

from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import Family, Importance, Sample

_UNKNOWN = "until it was counted once, and while it does not answer"


def _family(name: str, text: str, *, counter: bool = False) -> Family:
    return Family(
        name=name,
        kind="counter" if counter else "gauge",
        help=text,
        labels=("path",),
        absent=_UNKNOWN,
        importance=Importance.RUN,
    )


FAMILIES = (
    _family("mldebug_tree_bytes", "Allocated bytes below a directory, on its own filesystem (as `du -x`); a hard link counts once."),
    _family("mldebug_tree_apparent_bytes", "Lengths of all files below a directory: more than their bytes where they are sparse."),
    _family("mldebug_tree_inodes", "Files and folders below a directory, itself included (as `du --inodes`)."),
    _family("mldebug_tree_unread_entries", "Folders and names below it that could not be looked at: with any, the figures are lower bounds."),
    _family("mldebug_tree_timestamp_seconds", "Unix time of which the figures are true."),
    _family("mldebug_tree_lost_events", "Times that the kernel dropped events, since the tree was counted first.", counter=True),
    _family("mldebug_tree_rescans", "Times that all, or all that is not watched, was counted anew.", counter=True),
    Family(
        name="mldebug_tree_state",
        kind="gauge",
        help="1 for how a tree is known: counting (the first time), watched (by events), partly_watched, rescanned, events_lost, stuck.",
        labels=("path", "how"),
        absent="where no tree is configured",
        importance=Importance.RUN,
    ),
)  # fmt: skip
_BY_NAME = {family.name: family for family in FAMILIES}


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class TreeMetrics:
    """What the storage desk's part `trees` tells."""

    families = FAMILIES

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """One for each of its measures."""
        for one in snapshot.storage.measures if snapshot.storage else ():
            family = _BY_NAME.get(one.metric)
            if family is not None:
                yield Sample(family, one.labels, one.value)


def create(options: Options) -> TreeMetrics:
    """Build the group."""
    return TreeMetrics()
