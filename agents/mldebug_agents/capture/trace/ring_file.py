"""Finds and reads the call-trace file ("ring") of one rank through the reader child.

A living rank has its ring open, as links in /proc/PID/fd show; that of a dead rank is looked for by its name where it was. A ring is
used only where it is a regular file of the rank's user that nobody else may write, and its header names the rank's pid, start and this
boot. Each read has a deadline; sizes are bounded by `mldebug.capture.trace.layout`.
"""

import errno
from collections.abc import Iterable
from typing import NamedTuple

from mldebug.capture.trace.layout import HEAD_SIZE, HEADER_SIZE, PREFIX
from mldebug.capture.trace.reader import newest, read_ends, read_header
from mldebug.capture.trace.records import Ring, RingHeader
from mldebug.core.model import RankIdentity
from mldebug_agents.jobs.hook.records import check_owner
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece, Unreadable

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)
FOLDER = "/dev/shm"  # noqa: S108 - read, never written
MAX_CHUNKS = 16_384  # of a ring that an agent reads: a GiB as they are made; the heads of all are read each time
MAX_CANDIDATES = 16  # open files of one process that are looked into


class RingLocation(NamedTuple):
    """Where a call-trace file may be.

    `path`: with which this process opens it; `path_in_rank`: the same file as the rank's mounts
    name it; `open`: the rank has it open now.
    """

    path: str
    path_in_rank: str
    open: bool = True


def default_name(rank: RankIdentity) -> str:
    """The name of a rank's call-trace file in the default folder.

    It holds the pid inside the rank's pid namespace, and the start time.
    """
    return f"{PREFIX}{rank.namespace_pid or rank.pid}-{rank.start_ticks}"


def living(host: Host, rank: RankIdentity) -> list[RingLocation]:
    """Where the call trace of a living rank may be: at most `MAX_CANDIDATES` regular files that it
    has open to read and write, then the default path.

    A file at the default path that is not open may be from before an exec, which keeps pid and
    start time: see `maps_of`.
    """
    found = _open_files(host, rank.pid)
    default = f"{FOLDER}/{default_name(rank)}"
    if any(place.path_in_rank == default for place in found):
        return found
    return [*found, RingLocation(f"{host.root_of(rank.pid)}{default}", default, open=False)]


def maps_of(host: Host, pid: int) -> str:
    """The path of /proc/PID/maps, which lists a trace file that the process still writes, but not
    one from before an exec.
    """
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
    """Where the call trace of a rank that has exited may be: its last known path, and the default
    name in the default folder and in `folders`.

    Each path is given below each root directory that may have been the rank's: that of its launcher, if it ran in a container, or
    the agent's own. The files need not exist.
    """
    paths = [last.path_in_rank] if last is not None else []
    paths += [f"{folder}/{default_name(rank)}" for folder in (FOLDER, *folders)]
    roots = host.rights.roots(rank)
    return [RingLocation(f"{root}{path}", path) for path in dict.fromkeys(paths) for root in roots]


class StuckError(OSError):
    """The filesystem did not answer in time."""


class RingReader:
    """Reads parts of one rank's call-trace file.

    Methods raise OSError where it cannot be read, and ValueError where it is not this rank's or is
    damaged.
    """

    def __init__(
        self,
        reader: Reader,
        place: RingLocation,
        rank: RankIdentity,
        rights: Rights,
        boot_id: str,
    ) -> None:
        self._rights = rights
        self.place = place
        self._reader = reader
        self._rank = rank
        self._boot_id = boot_id

    def read(self, at: int, size: int) -> bytes:
        """Read at most `size` bytes from offset `at`.

        ValueError where the file belongs to another user or others may write it.
        """
        piece = self._reader.read_from(self.place.path, at, rights=self._rights, max_bytes=size)
        if not isinstance(piece, FilePiece):
            raise _error(piece)
        check_owner(piece, self._rank.uid)
        return piece.data

    def heads(self, header: RingHeader) -> bytes:
        """Read the begin (`HEAD_SIZE` bytes) of each chunk of the call-trace file that `header` describes: all of them, one after the other."""
        count = header.chunks
        where = (self.place.path, header.chunks_at, header.chunk_size)
        data = self._reader.read_heads(*where, rights=self._rights, count=count)
        if isinstance(data, Unreadable):
            raise _error(data)
        return data[: count * HEAD_SIZE]

    def check(self) -> RingHeader:
        """Read and return the header. ValueError where it names another process, an earlier boot, or more than `MAX_CHUNKS` chunks."""
        header = read_header(self.read)
        inside = self._rank.namespace_pid or self._rank.pid
        if (header.pid, header.start_ticks) != (inside, self._rank.start_ticks):
            raise ValueError(f"it is the ring of pid {header.pid}, started at {header.start_ticks}")
        if header.boot_id and self._boot_id and header.boot_id != self._boot_id:
            raise ValueError("it was written before this boot")
        if header.chunks > MAX_CHUNKS:
            raise ValueError(f"it has {header.chunks:,} chunks, and an agent reads {MAX_CHUNKS:,}")
        return header

    def ends(self, last: int) -> Ring:
        """Read what each thread did last: at least `last` records of the main thread, where there are so many."""
        self.check()
        return read_ends(self.read, last, self.heads)

    def written_ns(self) -> int | None:
        """When the newest record was written, unix time in nanoseconds; None where there is no record."""
        header = self.check()
        at = newest(self.read, header, self.heads(header))
        return None if at is None else at + header.offset_ns


def begins_as_one(reader: Reader, place: RingLocation, rights: Rights) -> bool:
    """Whether the file begins with the magic bytes of a call trace."""
    piece = reader.read_from(place.path, 0, rights=rights, max_bytes=HEADER_SIZE)
    return isinstance(piece, FilePiece) and piece.data[:7] == b"mltrace"


def _error(why: Unreadable) -> OSError:
    return (StuckError if why.stuck else OSError)(why.errno or 0, why.reason)


def absent(error: Exception) -> bool:
    """Whether the error says that the file or the process does not exist."""
    return isinstance(error, OSError) and error.errno in ABSENT


def first_error(errors: Iterable[Exception]) -> str:
    """The first error that is worth reporting, as text; "" where there is none.

    A file or process that does not exist is not worth it.
    """
    reported = [error for error in errors if not absent(error)]
    error = next(iter(reported), None)
    return "" if error is None else str(error.strerror if isinstance(error, OSError) else error)
