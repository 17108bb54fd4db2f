"""What one user may see of the storage desk: what is everyone's, and what his own jobs use. Pure."""

import msgspec

from mldebug.filling.state import PartState, Row, StorageState

UIDS = "uids"  # of a row: who may see it, as "1000 1001"; absent or empty: everyone


def of_user(told: StorageState, uid: int) -> StorageState:
    """Rows, alarms and figures of what only jobs of others use are left out, and who fills a filesystem."""
    return StorageState(parts=tuple(_part(one, uid) for one in told.parts))


def uids_cell(uids: tuple[int, ...]) -> str:
    """For a row."""
    return " ".join(str(uid) for uid in uids)


def _part(told: PartState, uid: int) -> PartState:
    alarms = [one for one in told.alarms if _may(one.uids, uid)]
    return msgspec.structs.replace(
        told,
        measures=tuple(one for one in told.measures if _may(one.uids, uid)),
        rows={heading: tuple(row for row in rows if _row(row, uid)) for heading, rows in told.rows.items()},
        alarms=tuple(msgspec.structs.replace(one, aside="") for one in alarms),
        gaps=tuple(one for one in told.gaps if one.pid is None),
    )  # fmt: skip


def _row(row: Row, uid: int) -> bool:
    return _may(tuple(int(one) for one in str(row.get(UIDS) or "").split()), uid)


def _may(uids: tuple[int, ...], uid: int) -> bool:
    return not uids or uid in uids
