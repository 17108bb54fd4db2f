"""Makes the file of a trace ring, and writes its header. `mldebug_training.tracing.ring` describes the layout.

All of its space is allocated when it is made: a lack of space is an error here, and never a SIGBUS in the training. Rings of dead
processes in the default place are kept for a day, and only a few of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import sys
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.own_file import OwnFile, shared
from mldebug_training.common.shared_files import FOLDER, remove, reserve, start_ticks
from mldebug_training.hook.ranks import command_line, rank_and_size
from mldebug_training.hook.record import short
from mldebug_training.tracing import ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    Place = Optional[str]  # None: the default

KEEP_SECONDS, KEEP_RINGS = (
    24 * 3600,
    16,
)  # of dead processes, in the default place; 16 of children, too
CHILD_AT, CHILD = 124, (1).to_bytes(4, "little")  # in the header
SMALLEST = 1 << 20  # bytes; below that a default ring is not worth its name
OF_FREE = 8  # a default ring takes that part of what is free at most: NCCL and DataLoader live in /dev/shm, too
_made: set[str] = set()  # in the default place, by this program
_left: dict[
    Place, tuple[str, int, int]
] = {}  # rings that have ended, by their place: path, inode, pid
ENGINE, PYTHON, NODE, WHY, FOLLOWED, COMMAND = ring.TEXTS


class Mapping:
    """A memory-mapped file. It is unmapped when this object is no longer referenced, so a user of `view` must keep it."""

    def __init__(self, fd: int, size: int) -> None:
        self.view = shared(fd, size)
        self._size = size

    def __del__(self) -> None:
        view = getattr(self, "view", None)
        if view is not None and sys is not None and not sys.is_finalizing():
            _unmap(view, self._size)


class ProcessRing:
    """The ring file of this process. Raises OSError where it cannot be made, ValueError for an invalid size."""

    def __init__(
        self, place: Place, size: int, engine: str, mode: int, followed: str, child: bool = False
    ) -> None:
        self.default = place is None
        self._place = place
        start = start_ticks()
        _take_back(place)
        if self.default:
            sweep()
        self.path, self._file, self.size = _reserved(place, size)
        try:
            self.mapping = Mapping(self._file.fd, self.size)
        except Exception:
            self._file.close()
            remove(self.path)
            raise
        self.names, self.chunks, self.chunk_size, self.count = ring.division(self.size)
        self.mode, self.state = mode, 0
        self._head(start, child)
        self._text(ENGINE, engine)
        self._text(FOLLOWED, followed)

    def set_state(self, state: int, why: str = "") -> None:
        """Write into the ring file which state the tracer is in from now on (see `ring`), and why."""
        self.state = state
        view = self.mapping.view
        self._text(WHY, why)
        ring.WORD.pack_into(view, 176, 0)
        ring.STATE.pack_into(view, 168, state, self.mode)
        ring.CHANGED.pack_into(view, 176, time.monotonic_ns(), self._interned())

    def step(self, number: int, at: int = 0) -> None:
        """Write that this step was reached, now or at `at` (CLOCK_MONOTONIC, ns)."""
        ring.STEP.pack_into(self.mapping.view, 144, number, at or time.monotonic_ns())

    def close(self, keep: bool) -> None:
        """End writing to the file and unlock it; without `keep` it is removed. The mapping is freed when its last user drops it."""
        if not keep:
            remove(self.path)
        elif self._file.mine():
            _left[self._place] = self.path, os.fstat(self._file.fd).st_ino, os.getpid()
        self._file.close()

    def forget(self) -> None:
        """In a forked child: close the parent's file here, without touching the file or its lock."""
        self._file.close()

    def _interned(self) -> int:
        return int(ring.CHANGED.unpack_from(self.mapping.view, 176)[1])

    def _text(self, where: tuple[int, int], text: str) -> None:
        at, size = where
        self.mapping.view[at : at + size] = short(text, size - 1).ljust(size, b"\0")

    def _head(self, start: int, child: bool) -> None:
        view, rank_size = self.mapping.view, rank_and_size()
        ring.LAYOUT.pack_into(
            *(view, 8, ring.HEADER_SIZE, ring.RECORD.size, self.size),
            *(ring.HEADER_SIZE, self.names, self.chunks, self.chunk_size, self.count),
        )
        ring.WHO.pack_into(
            *(view, 56, os.getpid(), start, _boot_id(), *rank_size, _local_rank(), child)
        )
        ring.CLOCKS.pack_into(view, 128, time.time_ns(), time.monotonic_ns())
        ring.STEP.pack_into(view, 144, -1, 0)
        self._text(PYTHON, f"{platform.python_implementation()} {platform.python_version()}")
        self._text(NODE, os.uname().nodename)
        self._text(COMMAND, " ".join(command_line()))
        view[: len(ring.MAGIC)] = ring.MAGIC


def sweep(folder: str = FOLDER) -> None:
    """Remove rings of dead processes of this user: those older than a day, and the oldest of too many. Never raises."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(ring.PREFIX)]
    except OSError as error:
        pass_on(error)
        return
    found = [_dead(os.path.join(folder, name)) for name in names]
    for child in (False, True):  # workers come and go; a rank's ring is never pushed out by theirs
        dead = sorted(one[:2] for one in found if one[1] and one[2] == child)
        old = time.time() - KEEP_SECONDS
        for place, (written, path) in enumerate(dead):
            if written < old or place < len(dead) - KEEP_RINGS:
                remove(path)


def leave_behind() -> None:
    """Remove the ring that this process wrote in the default place before an exec (which keeps pid and start time). Never
    raises.
    """
    try:
        path = _default()
        if path not in _made and os.path.lexists(path) and _dead(path, own=True)[1]:
            remove(path)
    except Exception as error:
        pass_on(error)


def _dead(path: str, own: bool = False) -> tuple[float, str, bool]:
    """When it was written last, where, and is it a child's? ("" for the path) where its process lives or it is not ours.

    `own`: it is of this very process, and so of before an exec, unless it has its lock.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        pass_on(error)
        return 0.0, "", False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        ours = found.st_uid == os.getuid() and (own or not _alive(path))
        child = os.pread(fd, len(CHILD), CHILD_AT) == CHILD
        return found.st_mtime, path if ours else "", child
    except OSError as error:  # it has its writer
        pass_on(error)
        return 0.0, "", False
    finally:
        os.close(fd)


def _alive(path: str) -> bool:
    """Is there a process of this pid and start? One that has closed all files it does not know holds no lock."""
    pid, _, start = os.path.basename(path)[len(ring.PREFIX) :].partition("-")
    if not pid.isdigit():
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19] == start.partition(".")[0].encode()
    except (OSError, IndexError) as error:
        pass_on(error)
        return False


def _reserved(place: Place, size: int) -> tuple[str, OwnFile, int]:
    """A new file with all of its room; where the default place has little, a smaller one."""
    ring.division(size)
    if place is not None:
        path, file = _named(place, size)
        return path, file, size
    path, size = _default(), _fitting(size)
    while True:
        try:
            path, file = _named(path, size)
            _made.add(path)
            return path, file, size
        except OSError as error:
            pass_on(error)
            if size // 4 < SMALLEST:
                raise
            size //= 4


def _fitting(size: int) -> int:
    """As much of it as may be taken of the default place. Raises OSError where that is not worth its name."""
    found = os.statvfs(FOLDER)
    free = found.f_bavail * found.f_frsize if found.f_blocks else sys.maxsize  # 0: it has no limit
    while size > free // OF_FREE:
        if size // 4 < SMALLEST:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size //= 4
    return size


def _take_back(place: Place) -> None:
    """Remove what this process has left here by a trace that ended: one that begins in a loop has one ring, not thousands."""
    path, inode, pid = _left.pop(place, ("", 0, 0))
    try:
        if pid == os.getpid() and os.lstat(path).st_ino == inode:
            remove(path)
    except OSError as error:  # somebody has taken it away
        pass_on(error)


def _default() -> str:
    return os.path.join(FOLDER, f"{ring.PREFIX}{os.getpid()}-{start_ticks()}")


def _named(path: str, size: int) -> tuple[str, OwnFile]:
    """The file of this name; with the pid behind it where that is taken, for what lies there may tell of a dead rank."""
    try:
        return path, OwnFile(reserve(path, size))
    except FileExistsError:
        pass
    path = f"{path}.{os.getpid()}"
    try:
        return path, OwnFile(reserve(path, size))
    except FileExistsError:
        path = f"{path}.{time.monotonic_ns()}"
        return path, OwnFile(reserve(path, size))


def _boot_id() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError as error:
        pass_on(error)
        return b""


def _local_rank() -> int:
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else -1


def _unmap(view: memoryview, size: int) -> None:
    import ctypes

    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    call = ctypes.CDLL(None).munmap
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    call(address, size)
