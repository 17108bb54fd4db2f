"""The mount child: queries mounts in threads; a mount whose last call has not returned is not queried again.

A thread that hangs in a call stays there, at most `MOST_STUCK` of them; when its call returns, the mount may be queried again.
"""

import contextlib
import errno
import os
import queue
import re
import socket
import stat
import threading
import time

import msgspec

from mldebug.storage.filesystems.canary import CanaryResult
from mldebug_agents.storage.child.messages import (
    CanaryFile,
    MountAnswer,
    MountAnswers,
    MountRequest,
    MountRequests,
    Space,
)
from mldebug_agents.storage.child.quota import read_blocks
from mldebug_agents.system.child.job_paths import open_inside
from mldebug_agents.system.child.link import ChildLink

Key = tuple[int, str, bytes]  # Place.key

MOST_STUCK = 16
LEAST_STUCK = 1.0  # seconds, or half a round: what has not come back for less than that is slow
MOST_COUNTED = 1 << 62  # bytes or inodes: 4 EiB
AT_ONCE = 16  # threads besides those that hang
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)


def serve(connection: socket.socket) -> None:
    """The main function of the mount child: answer requests about mounts until the agent closes the connection, then end
    the process at once, without waiting for threads that hang.
    """
    asking = MountProber()
    link = ChildLink(connection, msgspec.msgpack.Decoder(MountRequests))
    with contextlib.suppress(ConnectionError):  # the agent is gone
        while True:
            link.send(asking.round(link.receive()))
    os._exit(0)  # no thread that hangs keeps us


class MountProber:
    """Queries mounts in threads, and remembers between requests which of them hang."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[Key, float] = {}  # when the call began

    def round(self, wanted: MountRequests) -> MountAnswers:
        """Query all mounts and wait at most `wanted.seconds`. A mount whose call has not returned by then is taken to be stuck;
        one that was not reached in time gets the reason "there was no time left".
        """
        until = time.monotonic() + wanted.seconds
        stuck = set(self._hanging())
        free = [place for place in wanted.places if not stuck & {place.key, place.whole}]
        work: queue.SimpleQueue[MountRequest] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[Key, MountAnswer]] = queue.SimpleQueue()
        for place in free if len(stuck) < MOST_STUCK else ():
            work.put(place)
        threads = min(AT_ONCE, len(free), MOST_STUCK - len(stuck))
        for _ in range(threads):
            threading.Thread(target=self._ask_all, args=(work, done, until), daemon=True).start()
        found: dict[Key, MountAnswer] = {}
        while threads > 0 and len(found) < len(free) and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                key, answer = done.get(timeout=left)
                found[key] = answer
        return MountAnswers(
            wanted.number,
            tuple(found.get(one.key) or self._missed(one, wanted.seconds) for one in wanted.places),
        )

    def _hanging(self) -> dict[Key, float]:
        with self._lock:
            return dict(self._since)

    def _missed(self, place: MountRequest, seconds: float) -> MountAnswer:
        """The answer for a mount that gave none: stuck, or asked too late to have had the time."""
        hanging = self._hanging()
        since = hanging.get(place.key, hanging.get(place.whole))
        hangs = time.monotonic() - since if since is not None else 0.0
        if hangs < min(LEAST_STUCK, seconds / 2):
            return MountAnswer(mount=place.mount, reason="there was no time left to ask it")
        return MountAnswer(mount=place.mount, reason="it does not answer", stuck=hangs)

    def _ask_all(
        self,
        work: "queue.SimpleQueue[MountRequest]",
        done: "queue.SimpleQueue[tuple[Key, MountAnswer]]",
        until: float,
    ) -> None:
        while time.monotonic() < until:
            try:
                place = work.get_nowait()
            except queue.Empty:
                return
            with self._lock:
                self._since[place.key] = time.monotonic()
            try:
                answer = ask(place)
            finally:
                with self._lock:
                    del self._since[place.key]
            done.put((place.key, answer))


def ask(place: MountRequest) -> MountAnswer:
    """Query one mount in this thread, which may hang. Returns only a reason where another mount lies over it, or an error
    occurs.
    """
    try:
        fd = _open(place)
        try:
            with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
                found = _MOUNT_ID.search(file.read())
            here = int(found[1]) if found else place.mount
            if place.mount and here != place.mount:
                return MountAnswer(mount=place.mount, reason="another mount lies over it")
            return _of(msgspec.structs.replace(place, mount=here), fd)
        finally:
            os.close(fd)
    except OSError as error:
        return MountAnswer(mount=place.mount, reason=error.strerror or str(error))


def _open(place: MountRequest) -> int:
    """Raises OSError."""
    how = os.O_PATH if not (place.trial or place.owners) else os.O_RDONLY | os.O_DIRECTORY
    if not place.root:
        return os.open(place.path, how | os.O_CLOEXEC)
    top = os.open(place.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = open_inside(top, place.path.lstrip(b"/"), os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(top)
    if how == os.O_PATH:
        return found
    try:
        return os.open(f"/proc/self/fd/{found}", how | os.O_CLOEXEC)
    finally:
        os.close(found)


def _of(place: MountRequest, fd: int) -> MountAnswer:
    """Raises OSError."""
    if place.trial is not None:
        return MountAnswer(mount=place.mount, wrote=write(fd, place.trial))
    if place.owners is not None:
        return MountAnswer(mount=place.mount, blocks=read_blocks(fd, place.owners))
    return MountAnswer(mount=place.mount, space=space_of(os.fstatvfs(fd)))


def space_of(figures: os.statvfs_result) -> Space:
    """The figures of statvfs in bytes. Impossible ones (negative numbers of a server) become 0."""
    unit = figures.f_frsize or figures.f_bsize
    return Space(
        size=_sane(figures.f_blocks * unit),
        free=_sane(figures.f_bfree * unit),
        available=_sane(figures.f_bavail * unit),
        inodes=_sane(figures.f_files),
        inodes_free=_sane(figures.f_favail),
        read_only=bool(figures.f_flag & os.ST_RDONLY),
    )


def _sane(count: int) -> int:
    return count if 0 <= count < MOST_COUNTED else 0


def write(folder: int, wanted: CanaryFile) -> CanaryResult:
    """Write, sync and remove a test file in an open folder. Errors of the filesystem are in the result; a file left from an
    earlier run is removed first.
    """
    began = time.monotonic()
    try:
        _write(folder, wanted)
    except OSError as error:
        return _failed(folder, error.errno or errno.EIO, time.monotonic() - began)
    return CanaryResult(seconds=time.monotonic() - began)


def _failed(folder: int, number: int, seconds: float) -> CanaryResult:
    space = os.fstatvfs(folder)
    return CanaryResult(
        errno=number,
        seconds=seconds,
        available=space.f_bavail * (space.f_frsize or space.f_bsize),
        inodes=space.f_files,
        inodes_free=space.f_favail,
    )


def _write(folder: int, wanted: CanaryFile) -> None:
    handle = _create(folder, wanted)
    try:
        data = memoryview(os.urandom(wanted.size))  # nothing that compresses, or is there already
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    finally:
        try:
            os.close(handle)  # NFS tells a full disk here
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(wanted.name, dir_fd=folder)


def _create(folder: int, wanted: CanaryFile) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(wanted.name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        _remove_leftover(folder, wanted)
        return os.open(wanted.name, flags, 0o600, dir_fd=folder)


def _remove_leftover(folder: int, wanted: CanaryFile) -> None:
    """Only a file that can be ours: regular, of this user, with one name, and no larger than what we write."""
    found = os.stat(wanted.name, dir_fd=folder, follow_symlinks=False)
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
    if not ours or found.st_size > wanted.size:
        raise FileExistsError(errno.EEXIST, "somebody else's file has the name of the test file")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(wanted.name, dir_fd=folder)
