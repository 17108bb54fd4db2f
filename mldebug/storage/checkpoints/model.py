"""A checkpoint as it lies on disk (names and sizes of its files, the few bytes of them that were read), and the verdict on it.

Nothing here opens a file: the agent fills a `Checkpoint`, a layout names the byte ranges that it needs, the agent reads them.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

import msgspec

Kind = Literal["file", "folder", "link", "other"]


class FileEntry(msgspec.Struct, frozen=True):
    """One file or folder below a checkpoint's folder.

    `path` is relative to it; bytes that are no UTF-8 are surrogates.
    """

    path: str
    size: int = 0  # bytes
    mtime: float = 0.0  # unix, by the clock of the file system
    kind: Kind = "file"
    inode: int = 0


class ByteRange(NamedTuple):
    """A range of bytes of one file that a layout asks for.

    Path "" is the checkpoint itself, where it is a single file.

    With `find` the answer is not these bytes but all distinct matches of that regular expression in
    them: sorted, one a line, at most 100 bytes each. Large files are searched piece by piece and
    never held in memory.
    """

    path: str
    offset: int
    size: int
    find: bytes = b""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A possible checkpoint: a folder with its files, or a single file, whose path is ""."""

    name: str
    folder: bool = True
    files: tuple[FileEntry, ...] = ()  # regular files alone, sorted by path
    cut: str = ""  # why the listing is not whole; "": it is
    beside: Mapping[str, bytes] = {}  # small files next to it by name: `latest`
    parts: Mapping[ByteRange, bytes] = {}  # what was read of the files
    unread: Mapping[str, str] = {}  # path -> why nothing of it could be read

    def entry(self, path: str) -> FileEntry | None:
        """The file at that path; None where there is none."""
        return next((file for file in self.files if file.path == path), None)

    def whole_file(self, path: str, most: int) -> ByteRange | None:
        """The range of all bytes of that file; None where it is not there, is empty, or has more than `most` bytes."""
        file = self.entry(path)
        return ByteRange(path, 0, file.size) if file and 0 < file.size <= most else None

    @property
    def size(self) -> int:
        """Total size of its files in bytes."""
        return sum(file.size for file in self.files)


class Completeness(StrEnum):
    """Whether a checkpoint is complete, so that a job can resume from it."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"  # its writer died, or it was damaged since
    WRITING = "writing"
    UNKNOWN = "unknown"  # too little of it could be read


class CheckpointVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of one checkpoint show at this moment; whether a writer is still at work is judged elsewhere."""

    layout: str = ""  # name of the layout; "": none fits
    state: Completeness = Completeness.UNKNOWN
    why: str = ""  # a phrase: "shard 3 of 4 is missing"
    shards: int = 0  # files that hold tensors
    expected: int | None = None  # shards that the checkpoint itself promises
    ranks: Mapping[str, str] = {}  # which ranks have a file there: see `rank_files.ranks_of`
    kinds: tuple[str, ...] = ()  # names of its files with # for numbers: see `rank_files.kinds_of`
    writers: int | None = None  # ranks that wrote a file, where each rank writes its own


class Layout(Protocol):
    """How a framework lays out a checkpoint on disk. Each file in `layouts/` creates one."""

    order: int  # layouts are tried in rising order: special ones before general ones

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint has this layout, judged by file names alone."""
        ...

    def wants(self, checkpoint: Checkpoint) -> Iterable[ByteRange]:
        """Byte ranges (mostly of an index) that `judge` needs.

        Called again after they were read, as one may lead to the next.
        """
        ...

    def judge(self, checkpoint: Checkpoint) -> CheckpointVerdict:
        """The verdict whether all that the layout promises is there.

        The formats of single `.pt` and `.safetensors` files are checked elsewhere.
        """
        ...


def complete(
    layout: str, shards: int, why: str = "", expected: int | None = None
) -> CheckpointVerdict:
    """The verdict that everything is there. `shards`: how many files hold tensors; `expected`: how many should, None: not
    known.
    """
    return CheckpointVerdict(
        layout=layout, state=Completeness.COMPLETE, why=why, shards=shards, expected=expected
    )


def incomplete(
    layout: str, shards: int, why: str, expected: int | None = None
) -> CheckpointVerdict:
    """The verdict that something is missing or cut off; `why` is a phrase such as "shard 3 of 4 is missing". `shards`: how
    many files hold tensors; `expected`: how many should, None: not known.
    """
    return CheckpointVerdict(
        layout=layout, state=Completeness.INCOMPLETE, why=why, shards=shards, expected=expected
    )


def unsure(layout: str, shards: int, why: str) -> CheckpointVerdict:
    """The verdict that it cannot be told whether the checkpoint is complete; `why` is a phrase. `shards`: how many files
    hold tensors.
    """
    return CheckpointVerdict(layout=layout, state=Completeness.UNKNOWN, why=why, shards=shards)


WHOLE: Literal["whole"] = "whole"
BROKEN: Literal["broken"] = "broken"
UNSURE: Literal["unsure"] = "unsure"

FileCheck = tuple[Literal["whole", "broken", "unsure"], str]
"""What the check of one file found, and a phrase that follows the name of the file: "is empty"."""
