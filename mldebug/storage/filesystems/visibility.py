"""What one user may see of the storage state: what is everyone's, and what that user's own jobs use. Pure."""

from collections.abc import Collection

import msgspec

from mldebug.storage.filesystems.state import (
    CollectorState,
    Measure,
    Row,
    StorageAlert,
    StorageState,
)

OF_RANKS = "mldebug_rank_"  # metrics whose first label is the run
UIDS = "uids"  # of a row: who may see it, as "1000 1001"; absent or empty: everyone


def of_user(state: StorageState, uid: int, runs: Collection[str], pids: Collection[int] = ()) -> StorageState:  # fmt: skip
    """The part of the storage state that a user may see.

    Left out are mounts that only other users' jobs use, what other users' ranks write, and who
    fills a mount. `runs`: ids of the user's runs; `pids`: processes of their ranks, whose gaps are
    shown.
    """
    return StorageState(parts=tuple(_part(one, uid, runs, pids) for one in state.parts))


def uids_cell(uids: tuple[int, ...]) -> str:
    """User ids as the text of one table cell: `1000 1001`."""
    return " ".join(str(uid) for uid in uids)


def _part(
    state: CollectorState, uid: int, runs: Collection[str], pids: Collection[int]
) -> CollectorState:
    alarms = [one for one in state.alarms if _may(one.uids, uid)]
    rows = {
        heading: tuple(row for row in rows if _row(row, uid, runs))
        for heading, rows in state.rows.items()
    }
    return msgspec.structs.replace(
        state,
        measures=tuple(measure for measure in state.measures if _measure(measure, uid, runs)),
        rows={heading: kept for heading, kept in rows.items() if kept},
        alarms=tuple(_alarm(one, runs) for one in alarms),
        gaps=tuple(gap for gap in state.gaps if gap.pid is None or gap.pid in pids),
    )


def _alarm(one: StorageAlert, runs: Collection[str]) -> StorageAlert:
    waiters = {run: words for run, words in one.waiters.items() if run in runs}
    return msgspec.structs.replace(one, aside="", waiters=waiters)


def _measure(one: Measure, uid: int, runs: Collection[str]) -> bool:
    return _may(one.uids, uid) and (not one.metric.startswith(OF_RANKS) or one.labels[0] in runs)


def _row(row: Row, uid: int, runs: Collection[str]) -> bool:
    uids = tuple(int(one) for one in str(row.get(UIDS) or "").split())
    return _may(uids, uid) and row.get("job", "") in {"", *runs}


def _may(uids: tuple[int, ...], uid: int) -> bool:
    return not uids or uid in uids
