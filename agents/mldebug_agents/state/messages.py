"""What the agent and its state server send each other over a `ChildLink`; beside a reply may come a listening socket.

The tags are those of earlier releases.
"""

import msgspec

from mldebug_agents.system.child.leftovers import Leftover

MAX_BODY = 1 << 30

DeviceInode = tuple[int, int]  # device and inode


class OpenState(msgspec.Struct, frozen=True, tag="Open"):
    """Lock the state dir and read what is stored; `pid` is the agent's, `door` asks for the listening socket.

    `held`: the lock file that an earlier state server of this agent held.
    """

    state_dir: str
    pid: int
    door: bool
    held: DeviceInode | None = None


class CheckState(msgspec.Struct, frozen=True, tag="Check"):
    """Check whether the state dir is still the one that was opened; every other order does this, too."""


class OpenSocket(msgspec.Struct, frozen=True, tag="Door"):
    """Open the socket, which could not be opened together with the state dir."""


class StoreRun(msgspec.Struct, frozen=True, tag="Keep"):
    """Request to store one run (JSON)."""

    job_id: str
    memory: bytes
    incident: bytes | None


class StoredExits(msgspec.Struct, frozen=True, tag="KeepEnds"):
    """Which ranks of one run have exited, as JSON: an order, and the row on disk."""

    job_id: str
    data: bytes


class Memo(msgspec.Struct, frozen=True):
    """A small value kept under a name, JSON; b"" removes it."""

    name: str
    data: bytes


class StoreMemo(msgspec.Struct, frozen=True, tag="Remember"):
    """Request to store a value under a name."""

    memo: Memo


class DeleteRun(msgspec.Struct, frozen=True, tag="Forget"):
    """Request to delete one run."""

    job_id: str


class StoreLeftovers(msgspec.Struct, frozen=True, tag="Leave"):
    """Store these leftover processes in place of the earlier ones."""

    leftovers: tuple[Leftover, ...]


class SaveReport(msgspec.Struct, frozen=True, tag="Save"):
    """Request to write one report (JSON) and its files."""

    report: bytes
    html: str
    evidence: dict[str, bytes]
    owner_uid: int | None


class RemoveReport(msgspec.Struct, frozen=True, tag="Drop"):
    """Request to remove a report, because its incident continues under another id."""

    report_id: str


class PruneReports(msgspec.Struct, frozen=True, tag="Prune"):
    """Remove reports that are too old or too many."""


class CloseState(msgspec.Struct, frozen=True, tag="End"):
    """Close everything. The socket file is removed if it still has this device and inode."""

    door: DeviceInode | None


StateOrder = (
    OpenState
    | CheckState
    | OpenSocket
    | StoreRun
    | StoredExits
    | StoreMemo
    | DeleteRun
    | StoreLeftovers
    | SaveReport
    | RemoveReport
    | PruneReports
    | CloseState
)


class StoredRow(msgspec.Struct, frozen=True):
    """The row of a run, as it is on disk."""

    job_id: str
    memory: bytes
    incident: bytes | None


class StoredState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is on disk."""

    rows: tuple[StoredRow, ...] = ()
    ends: tuple[StoredExits, ...] = ()
    memos: tuple[Memo, ...] = ()
    leftovers: tuple[Leftover, ...] = ()


class StateReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a request. An error is one of: an errno with its text; a refusal with a sentence, a way out and an exit code; a defect of the agent itself."""

    errno: int = 0
    defect: str = ""  # it would fail again: it is not tried again
    error: str = ""
    refusal: tuple[str, str, int] | None = None
    occupied: bool = False  # the refusal: another agent holds the state dir
    notes: tuple[str, ...] = ()  # for the log
    found: StoredState = StoredState()
    reports: tuple[str, ...] = ()  # ids of those that are there when the place is opened
    door: DeviceInode | None = None  # of the socket file that was opened
    held: DeviceInode | None = None  # of the lock file
    lost: str = ""  # what was on disk is not there any more, and why; it was begun anew
