"""One save as it lies on disk: the listing of its files, the few bytes of them that were read, and the words of a verdict.

Nothing here is opened: whoever looks at the disk brings a `Save`, and is told which bytes would say more.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

import msgspec

Kind = Literal["file", "folder", "link", "other"]


class FileEntry(msgspec.Struct, frozen=True):
    """One name below a folder. `path` is relative to it, as the kernel has it (surrogates stand for what is no UTF-8)."""

    path: str
    size: int = 0  # bytes
    mtime: float = 0.0  # unix, by the clock of the file system
    kind: Kind = "file"
    inode: int = 0


class ByteRange(NamedTuple):
    """Bytes of one file of a save; "" is the save itself where it is a file.

    With `find` not the bytes are wanted, but all different matches of that expression in them, sorted, one on each line:
    what is far larger than all that it names is searched piece by piece and never held. A match has at most 100 bytes.
    """

    path: str
    offset: int
    size: int
    find: bytes = b""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate for a checkpoint: a folder with its files, or one file whose path is ""."""

    name: str
    folder: bool = True
    files: tuple[FileEntry, ...] = ()  # regular files alone, sorted by path
    cut: str = ""  # why the listing is not whole; "": it is
    beside: Mapping[str, bytes] = {}  # small files next to it by name: `latest`
    parts: Mapping[ByteRange, bytes] = {}  # what was read of the files
    unread: Mapping[str, str] = {}  # path -> why nothing of it could be read

    def entry(self, path: str) -> FileEntry | None:
        """The file of that path; None where there is none."""
        return next((one for one in self.files if one.path == path), None)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(one.size for one in self.files)


class Completeness(StrEnum):
    """What became of a save."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"  # it died, or was damaged since
    WRITING = "writing"
    UNKNOWN = "unknown"  # nobody could read enough of it to say


class CheckpointVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of one save say, whatever the clock says."""

    layout: str = ""  # name of the plugin; "": none knows it
    state: Completeness = Completeness.UNKNOWN
    why: str = ""  # a phrase: "shard 3 of 4 is missing"
    shards: int = 0  # files that hold tensors
    expected: int | None = None  # as the save itself says
    ranks: Mapping[str, str] = {}  # who has a file there, as `crew.ranks_of` tells it
    seats: int | None = None  # ranks that wrote one, where each rank of the job is to write its own


class Layout(Protocol):
    """What a file in `checkpoints/` creates."""

    order: int  # the smallest is asked first: the more special one

    def fits(self, save: Checkpoint) -> bool:
        """Is this one of its kind? Told by names alone."""
        ...

    def wants(self, save: Checkpoint) -> Iterable[ByteRange]:
        """Which bytes of its index would say more."""
        ...

    def judge(self, save: Checkpoint) -> CheckpointVerdict:
        """Is what its index promises there? What is inside single files is checked for it."""
        ...


def complete(
    layout: str, shards: int, why: str = "", expected: int | None = None
) -> CheckpointVerdict:
    """All that was promised is there."""
    return CheckpointVerdict(
        layout=layout, state=Completeness.COMPLETE, why=why, shards=shards, expected=expected
    )


def incomplete(
    layout: str, shards: int, why: str, expected: int | None = None
) -> CheckpointVerdict:
    """Something that was promised is not there."""
    return CheckpointVerdict(
        layout=layout, state=Completeness.INCOMPLETE, why=why, shards=shards, expected=expected
    )


def unsure(layout: str, shards: int, why: str) -> CheckpointVerdict:
    """Nobody could say."""
    return CheckpointVerdict(layout=layout, state=Completeness.UNKNOWN, why=why, shards=shards)


WHOLE: Literal["whole"] = "whole"


BROKEN: Literal["broken"] = "broken"


UNSURE: Literal["unsure"] = "unsure"


FileCheck = tuple[Literal["whole", "broken", "unsure"], str]
"""The answer, and a phrase that follows the name of the file: "is empty"."""
