"""What was counted below directories, and the answer that is made of it."""

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.storage.checkpoints.history import KnownCheckpoint


class PartFile(msgspec.Struct, frozen=True, array_like=True):
    """A file whose name is one of checkpoints, in a folder that was counted. `own`: bytes on disk that nobody else has a name for."""

    name: bytes
    bytes: int
    own: int
    inodes: int
    newest: float  # unix


class CountedFolder(msgspec.Struct, frozen=True, array_like=True):
    """What lies directly in one folder; the folder itself counts, and a file with several names only where it was met first.

    Sizes are bytes on disk. `owners`: uid -> (bytes, inodes). `own`: bytes of files that have no second name.
    """

    path: bytes
    owners: dict[int, tuple[int, int]]
    own: int
    newest: float  # unix, the latest change of one of its files
    parts: tuple[PartFile, ...] = ()
    links: tuple[bytes, ...] = ()  # what its symbolic links lead to, as they are written


class CountedTree(MeasuredData, frozen=True, kw_only=True):
    """How far the count of one directory came. Sizes of its filesystem are bytes, None where they are not known."""

    path: str
    trouble: str = ""  # why it was not counted at all
    finished: bool = False
    unfinished: tuple[str, ...] = ()  # folders of it that were not counted to the end
    stopped_by: str = ""  # what ended the count, in words
    other_filesystems: tuple[str, ...] = ()  # below it, not entered
    unreadable: int = 0  # folders and names that could not be looked at
    too_deep: int = 0
    inodes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    size: int | None = None  # of the filesystem
    left: int | None = None  # as `df` counts for ordinary users
    inodes_size: int | None = None
    inodes_left: int | None = None


class UserUsage(MeasuredData, frozen=True, kw_only=True):
    """The bytes and inodes on a filesystem that belong to one user."""

    user: str
    uid: int
    bytes: int
    inodes: int


class FolderUsage(MeasuredData, frozen=True, kw_only=True):
    """What lies in the folder of a run (where checkpoints are), or in another folder of the first level."""

    path: str
    bytes: int
    inodes: int
    user: str  # to whom most of it belongs
    others: int = 0  # how many more users have something in it
    runs: tuple[str, ...] = ()  # names and ids of runs that are known to write there
    has_checkpoints: bool = False


class OldCheckpoint(MeasuredData, frozen=True, kw_only=True):
    """A checkpoint that could go. `bytes`: what is on disk; `frees`: what its end would free, less where a file has other names."""

    path: str
    user: str
    bytes: int
    frees: int
    checkpoint: KnownCheckpoint


class NeededCheckpoint(MeasuredData, frozen=True, kw_only=True):
    """A checkpoint that stays whatever the number of those kept, and why."""

    path: str
    why: str


class Retention(MeasuredData, frozen=True, kw_only=True):
    """What would be free if the newest `keep` whole checkpoints of each series stayed."""

    keep: int
    frees: int
    checkpoints: int


class StorageUsage(MeasuredData, frozen=True, kw_only=True):
    """The whole answer of `mldebug usage`. Nothing of it was deleted or changed."""

    now: float  # unix
    trees: tuple[CountedTree, ...]
    users: tuple[UserUsage, ...] = ()  # the largest first
    folders: tuple[FolderUsage, ...] = ()  # the largest first
    keep: int
    could_go: tuple[OldCheckpoint, ...] = ()  # the largest first
    retention: tuple[Retention, ...] = ()
    needed: tuple[NeededCheckpoint, ...] = ()
    series: int = 0  # of checkpoints that were found
    without_whole: tuple[str, ...] = ()  # series of which none is whole: nothing of them could go
    notes: tuple[str, ...] = ()  # what is not known, in words
