"""The messages between the agent and its state server over a `ChildLink`. A reply may bring a listening socket with it.

The tags keep the names of earlier releases.
"""

import msgspec

from mldebug_agents.system.child.leftovers import Leftover

MAX_BODY = 1 << 30

DeviceInode = tuple[int, int]  # device and inode


class OpenState(msgspec.Struct, frozen=True, tag="Open"):
    """Request to the state server, the child process that reads and writes the agent's state dir: lock it, and read what is stored.

    `pid`: the agent's; `listener`: also open the Unix socket on which the agent answers; `held`: the lock file that an earlier
    state server of this agent held.
    """

    state_dir: str
    pid: int
    listener: bool
    held: DeviceInode | None = None


class CheckState(msgspec.Struct, frozen=True, tag="Check"):
    """Request to check whether the path still shows the state dir that was opened.

    Every other request but `CloseState` checks this, too.
    """


class OpenSocket(msgspec.Struct, frozen=True, tag="Door"):
    """Request to open the listening socket, where that failed when the state dir was opened, or the state dir was replaced.

    `place`: the socket file that the agent serves already; where it is still there, none is opened.
    """

    place: DeviceInode | None = None


class StoreRun(msgspec.Struct, frozen=True, tag="Keep"):
    """Request to store the row of one run.

    `memory`: what its watch has learned; `incident`: its open incident; both as JSON.
    """

    job_id: str
    memory: bytes
    incident: bytes | None


class StoredExits(msgspec.Struct, frozen=True, tag="KeepEnds"):
    """How ranks of one run have exited, as JSON. Serves as a request to store it, and as the stored row."""

    job_id: str
    data: bytes


class Memo(msgspec.Struct, frozen=True):
    """A small JSON value that is stored under a name; b"" deletes it."""

    name: str
    data: bytes


class StoreMemo(msgspec.Struct, frozen=True, tag="Remember"):
    """Request to store a value under a name."""

    memo: Memo


class DeleteRun(msgspec.Struct, frozen=True, tag="Forget"):
    """Request to delete the row and the exits of one run."""

    job_id: str


class StoreLeftovers(msgspec.Struct, frozen=True, tag="Leave"):
    """Request to store these processes that could not be ended, in place of the earlier list."""

    leftovers: tuple[Leftover, ...]


class SaveReport(msgspec.Struct, frozen=True, tag="Save"):
    """Request to write one report (JSON), its page and its evidence files.

    `owner_uid`: the user to whom they shall belong; None: the agent's.
    """

    report: bytes
    html: str
    evidence: dict[str, bytes]
    owner_uid: int | None


class RemoveReport(msgspec.Struct, frozen=True, tag="Drop"):
    """Request to remove a report, because its incident continues under another id."""

    report_id: str


class PruneReports(msgspec.Struct, frozen=True, tag="Prune"):
    """Request to remove reports that are too old, too many or too large together."""


class CloseState(msgspec.Struct, frozen=True, tag="End"):
    """Request to close the database and release the lock.

    `socket_file`: it is removed only if it still has this device and inode.
    """

    socket_file: DeviceInode | None


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
    """The stored row of a run: its watch's memory and its open incident, both as JSON."""

    job_id: str
    memory: bytes
    incident: bytes | None


class StoredState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a state dir holds but its reports."""

    rows: tuple[StoredRow, ...] = ()
    ends: tuple[StoredExits, ...] = ()
    memos: tuple[Memo, ...] = ()
    leftovers: tuple[Leftover, ...] = ()


class StateReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a request.

    Errors: `errno` with `error`: may succeed later; `refusal` (sentence, way out, exit code): never
    will; `defect`: an exception of the agent's own code.
    """

    errno: int = 0
    defect: str = ""  # it would fail again: it is not tried again
    error: str = ""
    refusal: tuple[str, str, int] | None = None
    occupied: bool = False  # the refusal: another agent holds the state dir
    notes: tuple[str, ...] = ()  # for the log
    found: StoredState = StoredState()
    reports: tuple[str, ...] = ()  # ids of those that are there when the place is opened
    socket_file: DeviceInode | None = None  # that was opened
    held: DeviceInode | None = None  # of the lock file
    gone: bool = (
        False  # the path does not show the folder that was held, and what is there cannot be used
    )
    lost: str = ""  # what was on disk is not there any more, and why; it was begun anew
