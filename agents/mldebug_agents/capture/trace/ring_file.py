"""One ring read through the reader child, and only believed where it is that very process's own.

It has to be a regular file of the rank's user that nobody else may write, and its header has to name the rank's pid, its
start and this boot. Each read has a deadline of its own, and sizes are bounded by `mldebug.capture.trace.layout`.
"""

import errno
from collections.abc import Iterable

from mldebug.capture.trace.layout import HEAD_SIZE, HEADER_SIZE, MAX_CHUNKS
from mldebug.capture.trace.reader import newest, read_ends, read_header
from mldebug.capture.trace.records import Header, Ring
from mldebug.core.model import RankIdentity
from mldebug_agents.capture.trace.locations import RingPlace
from mldebug_agents.jobs.hook.records import check_owner
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece, Unreadable

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)


class StuckError(OSError):
    """The path did not answer."""


class RingFile:
    """Reads pieces of one ring. Raises OSError with the reason, and ValueError where it is not believed."""

    def __init__(self, reader: Reader, place: RingPlace, rank: RankIdentity, boot_id: str) -> None:
        self.place = place
        self._reader = reader
        self._rank = rank
        self._boot_id = boot_id

    def read(self, at: int, size: int) -> bytes:
        """Bytes at an offset, of a file that is the rank's at this moment too."""
        piece = self._reader.read_from(self.place.path, at, max_bytes=size)
        if not isinstance(piece, FilePiece):
            raise _error(piece)
        check_owner(piece, self._rank.uid)
        return piece.data

    def heads(self, header: Header) -> bytes:
        """The heads of all chunks."""
        count = min(header.chunks, MAX_CHUNKS)
        where = (self.place.path, header.chunks_at, header.chunk_size)
        data = self._reader.read_heads(*where, count=count)
        if isinstance(data, Unreadable):
            raise _error(data)
        return data[: count * HEAD_SIZE]

    def check(self) -> Header:
        """Its header, if it is this very process's."""
        header = read_header(self.read)
        inside = self._rank.namespace_pid or self._rank.pid
        if (header.pid, header.start_ticks) != (inside, self._rank.start_ticks):
            raise ValueError(f"it is the ring of pid {header.pid}, started at {header.start_ticks}")
        if header.boot_id and self._boot_id and header.boot_id != self._boot_id:
            raise ValueError("it was written before this boot")
        return header

    def ends(self, last: int) -> Ring:
        """What each thread did last."""
        self.check()
        return read_ends(self.read, last, self.heads)

    def written_ns(self) -> int | None:
        """When its newest record was written, unix nanoseconds; None: nothing was."""
        header = self.check()
        at = newest(self.read, header, self.heads(header))
        return None if at is None else at + header.offset_ns


def begins_as_one(reader: Reader, place: RingPlace) -> bool:
    """Is it worth a closer look?"""
    piece = reader.read_from(place.path, 0, max_bytes=HEADER_SIZE)
    return isinstance(piece, FilePiece) and piece.data[:7] == b"mltrace"


def _error(why: Unreadable) -> OSError:
    return (StuckError if why.stuck else OSError)(why.errno or 0, why.reason)


def absent(error: Exception) -> bool:
    """Is it only not there?"""
    return isinstance(error, OSError) and error.errno in ABSENT


def first_error(errors: Iterable[Exception]) -> str:
    """What is worth telling of several failures: not that a file is absent."""
    told = [error for error in errors if not absent(error)]
    error = next(iter(told), None)
    return "" if error is None else str(error.strerror if isinstance(error, OSError) else error)
