"""What a person may see of the storage desk: filesystems are everybody's, what single ranks write is their owner's."""

from collections.abc import Collection

import msgspec

from mldebug.filling.state import PartState, StorageState

OF_RANKS = "mldebug_rank_"  # metrics whose first label is the run


def of_runs(told: StorageState, runs: Collection[str]) -> StorageState:
    """The same with what is told of the ranks of these runs alone."""
    return StorageState(parts=tuple(_part(one, runs) for one in told.parts))


def _part(told: PartState, runs: Collection[str]) -> PartState:
    mine = tuple(one for one in told.measures if not one.metric.startswith(OF_RANKS) or one.labels[0] in runs)  # fmt: skip
    rows = {
        heading: kept
        for heading, all_rows in told.rows.items()
        if (kept := tuple(row for row in all_rows if row.get("job", "") in {"", *runs}))
    }
    return msgspec.structs.replace(told, measures=mine, rows=rows)
