"""Reads the files into which PyTorch dumps Flight Recorders, and checks their owner, age, run and completeness.

A dump is written in place, over the one before. It is complete when its last byte is the STOP of a
pickle and all of it parses.
"""

import stat
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from mldebug.capture.flight_recorder.dump import MAX_DUMP, limits_of_living_job, parse_dump
from mldebug.capture.flight_recorder.votes import newest_call
from mldebug.core.model import FlightRecord, RankIdentity
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece, Tail, Unreadable

STOP = b"."
RECENT = 120.0  # seconds; a living rank has gone on since an older one

Answered = TypeVar("Answered", FilePiece, Tail, bytes, None)


class HangAwareReader:
    """Reads files for one capture.

    After the first path that hangs it reads no other, since most lie on the same mount.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._hung = False

    def read_from(
        self, path: str, offset: int, *, rights: Rights, max_bytes: int
    ) -> FilePiece | Unreadable:
        """Read at most `max_bytes` of a file from `offset` on, as `Reader.read_from` does. Once a path has hung, returns
        `Unreadable` without trying.
        """
        read = self._reader.read_from
        return self._ask(lambda: read(path, offset, rights=rights, max_bytes=max_bytes))

    def read_tail(self, path: str, *, rights: Rights, max_bytes: int) -> Tail | Unreadable:
        """Read the last `max_bytes` of a file, as `Reader.read_tail` does. Once a path has hung, returns `Unreadable`
        without trying.
        """
        return self._ask(lambda: self._reader.read_tail(path, rights=rights, max_bytes=max_bytes))

    def write_byte(self, path: str, *, rights: Rights) -> Unreadable | None:
        """Write one byte into a FIFO, as `Reader.write_byte` does; None on success. Once a path has hung, returns `Unreadable`
        without trying.
        """
        return self._ask(lambda: self._reader.write_byte(path, rights=rights))

    def _ask(self, ask: Callable[[], Answered | Unreadable]) -> Answered | Unreadable:
        if self._hung:
            return Unreadable("not read: a path of this job did not answer just before")
        answer = ask()
        self._hung = isinstance(answer, Unreadable) and answer.stuck
        return answer


class FileStamp(NamedTuple):
    """Identity, size (bytes) and modification time (unix) of a file. If two stamps differ, it is another file or was written meanwhile."""

    device: int
    inode: int
    size: int
    mtime: float

    @property
    def file(self) -> tuple[int, int]:
        """Device and inode, which identify the file whatever its path."""
        return self.device, self.inode


class FoundDump(NamedTuple):
    """A Flight Recorder dump, when it was written (`at`, unix time), and the file."""

    record: FlightRecord
    at: float
    path: str
    mark: FileStamp


def file_stamp(reader: HangAwareReader, path: str, rights: Rights) -> FileStamp | None:
    """The present stamp of a file, to notice later that it has changed.

    None where there is no such file, or it may not be read.
    """
    piece = reader.read_from(path, 0, rights=rights, max_bytes=0)
    return _mark(piece) if isinstance(piece, FilePiece) else None


def _mark(piece: FilePiece) -> FileStamp:
    return FileStamp(piece.device, piece.inode, piece.size, piece.mtime)


def read_dump(
    reader: HangAwareReader, path: str, rank: RankIdentity, rights: Rights
) -> FoundDump | str:
    """Read the dump of this rank; else why the file is not one, as text; "" where there is no file."""
    piece = reader.read_from(path, 1 << 62, rights=rights, max_bytes=0)
    if isinstance(piece, Unreadable):
        return "" if piece.errno in (2, 3, 20) else piece.reason
    why = not_theirs(piece, rank)
    if why:
        return why
    if piece.size > MAX_DUMP:
        return f"it has {piece.size} bytes, more than {MAX_DUMP}"
    tail = reader.read_tail(path, rights=rights, max_bytes=1)
    if isinstance(tail, Unreadable) or tail.data != STOP:
        return "it is not complete"
    whole = reader.read_from(path, 0, rights=rights, max_bytes=MAX_DUMP + 1)
    if isinstance(whole, Unreadable):
        return whole.reason
    return not_theirs(whole, rank) or parsed(path, whole, rank)


def not_theirs(piece: FilePiece, one: RankIdentity) -> str:
    """Why this file cannot be this rank's (another owner, writable by everybody, older than the rank); "" where it can."""
    if piece.uid != one.uid:
        return f"it belongs to user {piece.uid} and not to user {one.uid} of the rank"
    if piece.mode & stat.S_IWOTH:
        return "everybody may write it"
    if piece.mtime < one.started_at:
        return "it is older than the rank"
    return ""


def parsed(path: str, piece: FilePiece, rank: RankIdentity) -> FoundDump | str:
    """The dump in these bytes; else why it is not believed, as text: it does not parse, or holds no
    call since the rank began (jobs of one user may share the file).
    """
    try:
        record = parse_dump(piece.data, limits_of_living_job(rank.world_size))
    except ValueError as error:
        return f"it is not believed: {error}"
    if newest_call(record) < rank.started_at:
        return "it is of another run: nothing in it was called since the rank began"
    return FoundDump(record, piece.mtime, path, _mark(piece))


def timed_out(found: FoundDump) -> bool:
    """Whether a call in this dump had exceeded its timeout when the dump was written.

    Then PyTorch wrote it by itself, and the rank does not go on.
    """
    return any(
        not call.done and call.created_at > 0 and 0 < call.timeout <= found.at - call.created_at
        for group in found.record.groups
        for call in group.calls
    )


def newest(found: Sequence[FoundDump | str]) -> FoundDump | str:
    """The dump that was written last; without any, the first reason that is not ""."""
    dumps = [one for one in found if isinstance(one, FoundDump)]
    if dumps:
        return max(dumps, key=lambda one: one.at)
    return next((one for one in found if one), "")
