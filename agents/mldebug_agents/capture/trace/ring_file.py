"""Finds and reads the call-trace file ("ring") of one rank through the reader child.

A living rank has its ring open, as links in /proc/PID/fd show; that of a dead rank is looked for by its name where it was. A ring is
used only where it is a regular file of the rank's user that nobody else may write, and its header names the rank's pid, start and this
boot. Each read has a deadline; sizes are bounded by `mldebug.capture.trace.layout`.
"""

import errno
from collections.abc import Iterable
from typing import NamedTuple

from mldebug.capture.trace.layout import HEAD_SIZE, HEADER_SIZE, MAX_CHUNKS, PREFIX
from mldebug.capture.trace.reader import newest, read_ends, read_header
from mldebug.capture.trace.records import Ring, RingHeader
from mldebug.core.model import RankIdentity
from mldebug_agents.jobs.hook.records import check_owner
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece, Unreadable

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)
FOLDER = "/dev/shm"  # noqa: S108 - read, never written
MAX_CANDIDATES = 16  # open files of one process that are looked into


class RingLocation(NamedTuple):
    """`path`: as it is opened from here. `path_in_rank`: as the rank sees it. `open`: does a living one have it open?"""

    path: str
    path_in_rank: str
    open: bool = True


def default_name(rank: RankIdentity) -> str:
    """The file's name in the default folder; the pid as the process itself sees it."""
    return f"{PREFIX}{rank.namespace_pid or rank.pid}-{rank.start_ticks}"


def living(host: Host, rank: RankIdentity) -> list[RingLocation]:
    """Where it may be: regular files that it has open to read and write, then the default place, where it may have closed that.

    What lies there and is not open may also be of before an exec, which keeps pid and start: see `maps_of`.
    """
    found = _open_files(host, rank.pid)
    default = f"{FOLDER}/{default_name(rank)}"
    if any(place.path_in_rank == default for place in found):
        return found
    return [*found, RingLocation(f"{host.root_of(rank.pid)}{default}", default, open=False)]


def maps_of(host: Host, pid: int) -> str:
    """The file that tells what a process has mapped: a ring that it still writes is among it, and none of before an exec."""
    return f"{host.proc}/{pid}/maps"


def _open_files(host: Host, pid: int) -> list[RingLocation]:
    state = host.process_state(pid, threads=False, files=True)
    files = [file for file in state.files if file.mode == "rw"] if state else []
    files = [
        file for file in files if file.kind in ("file", "deleted") and file.target.startswith("/")
    ]
    files.sort(key=lambda one: (PREFIX not in one.target, "ring" not in one.target, -one.fd))
    proc = f"{host.proc}/{pid}/fd"
    return [RingLocation(f"{proc}/{one.fd}", one.target) for one in files[:MAX_CANDIDATES]]


def dead(
    host: Host, rank: RankIdentity, last: RingLocation | None, folders: Iterable[str]
) -> list[RingLocation]:
    """Where it was, and the default name in each folder: as its launcher sees that path, and as we do."""
    paths = [last.path_in_rank] if last is not None else []
    paths += [f"{folder}/{default_name(rank)}" for folder in (FOLDER, *folders)]
    roots = [host.root_of(rank.launcher_pid)] if rank.launcher_pid else []
    roots += [host.root_of(rank.pid), host.root]
    return [RingLocation(f"{root}{path}", path) for path in dict.fromkeys(paths) for root in roots]


class StuckError(OSError):
    """The path did not answer."""


class RingReader:
    """Reads pieces of one ring. Raises OSError with the reason, and ValueError where it is not the rank's own ring."""

    def __init__(
        self, reader: Reader, place: RingLocation, rank: RankIdentity, boot_id: str
    ) -> None:
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

    def heads(self, header: RingHeader) -> bytes:
        """The heads of all chunks."""
        count = min(header.chunks, MAX_CHUNKS)
        where = (self.place.path, header.chunks_at, header.chunk_size)
        data = self._reader.read_heads(*where, count=count)
        if isinstance(data, Unreadable):
            raise _error(data)
        return data[: count * HEAD_SIZE]

    def check(self) -> RingHeader:
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


def begins_as_one(reader: Reader, place: RingLocation) -> bool:
    """Is it worth a closer look?"""
    piece = reader.read_from(place.path, 0, max_bytes=HEADER_SIZE)
    return isinstance(piece, FilePiece) and piece.data[:7] == b"mltrace"


def _error(why: Unreadable) -> OSError:
    return (StuckError if why.stuck else OSError)(why.errno or 0, why.reason)


def absent(error: Exception) -> bool:
    """Is it only not there?"""
    return isinstance(error, OSError) and error.errno in ABSENT


def first_error(errors: Iterable[Exception]) -> str:
    """The first of several failures that is worth reporting; an absent file is not."""
    reported = [error for error in errors if not absent(error)]
    error = next(iter(reported), None)
    return "" if error is None else str(error.strerror if isinstance(error, OSError) else error)
