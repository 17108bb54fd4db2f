"""What the agent and its state keeper say to each other over a `Link`; beside a reply may come a listening socket."""

import msgspec

from mldebug_agents.system.child.leftovers import Leftover

MAX_BODY = 1 << 30

Place = tuple[int, int]  # device and inode


class Open(msgspec.Struct, frozen=True, tag=True):
    """Make the state dir ours and read what is there; `pid` is the agent's, `door` asks for the socket.

    `held`: the lock file that an earlier keeper of this agent held.
    """

    state_dir: str
    pid: int
    door: bool
    held: Place | None = None


class Check(msgspec.Struct, frozen=True, tag=True):
    """Look whether the state dir is still the one that we hold; every other order does so, too."""


class Door(msgspec.Struct, frozen=True, tag=True):
    """Open the socket that could not be opened with the rest."""


class Keep(msgspec.Struct, frozen=True, tag=True):
    """Store one run, as JSON."""

    job_id: str
    memory: bytes
    incident: bytes | None


class StoredEnds(msgspec.Struct, frozen=True, tag="KeepEnds"):
    """Who of one run has ended, as JSON: an order, and what lies on disk."""

    job_id: str
    told: bytes


class Memo(msgspec.Struct, frozen=True):
    """What is remembered under a name, as JSON; empty: nothing."""

    name: str
    told: bytes


class Remember(msgspec.Struct, frozen=True, tag=True):
    """Store a memo."""

    memo: Memo


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Delete one run."""

    job_id: str


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Store these and no other leftovers."""

    leftovers: tuple[Leftover, ...]


class Save(msgspec.Struct, frozen=True, tag=True):
    """Write one report (JSON) and its files."""

    report: bytes
    html: str
    evidence: dict[str, bytes]
    owner_uid: int | None


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Remove a report that is told under another id."""

    report_id: str


class Prune(msgspec.Struct, frozen=True, tag=True):
    """Remove reports that are too old or too many."""


class End(msgspec.Struct, frozen=True, tag=True):
    """Close everything; the socket file goes if it is still the one of that device and inode."""

    door: Place | None


Order = (
    Open | Check | Door | Keep | StoredEnds | Remember | Forget | Leave | Save | Drop | Prune | End
)


class StoredRow(msgspec.Struct, frozen=True):
    """A run as it lies on disk."""

    job_id: str
    memory: bytes
    incident: bytes | None


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that lies on disk."""

    rows: tuple[StoredRow, ...] = ()
    ends: tuple[StoredEnds, ...] = ()
    memos: tuple[Memo, ...] = ()
    leftovers: tuple[Leftover, ...] = ()


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How it went. An error is an errno and its words, or a refusal: a sentence, its way out, its exit code."""

    errno: int = 0
    error: str = ""
    refusal: tuple[str, str, int] | None = None
    occupied: bool = False  # the refusal: another agent holds the state dir
    notes: tuple[str, ...] = ()  # for the log
    found: Found = Found()
    door: Place | None = None  # of the socket file that was opened
    held: Place | None = None  # of the lock file
    lost: str = ""  # what was on disk is not there any more, and why; it was begun anew
