"""One inotify queue, by the bare C functions of watchdog.

Why not its observers: they keep a path and an object for each watch and each event, call back under locks, and register a
moved folder anew. Here an event is three values, and a folder is known by its inode wherever it is moved.
"""

import ctypes
import os
import struct
from collections.abc import Iterator

from watchdog.observers.inotify_c import (
    InotifyConstants,
    inotify_add_watch,
    inotify_init,
    inotify_rm_watch,
)

OVERFLOW = int(InotifyConstants.IN_Q_OVERFLOW)
IGNORED = int(InotifyConstants.IN_IGNORED)
ROOT_GONE = int(
    InotifyConstants.IN_DELETE_SELF | InotifyConstants.IN_MOVE_SELF | InotifyConstants.IN_UNMOUNT
)
_NAMED = int(
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVED_FROM
    | InotifyConstants.IN_MOVED_TO
    | InotifyConstants.IN_MODIFY
    | InotifyConstants.IN_ATTRIB
)
_MASK = (
    _NAMED
    | int(InotifyConstants.IN_DELETE_SELF)
    | int(InotifyConstants.IN_MOVE_SELF)
    | int(InotifyConstants.IN_ONLYDIR)
    | int(InotifyConstants.IN_EXCL_UNLINK)
)
_HEAD = struct.Struct("iIII")
_CHUNK = 1 << 18  # bytes of one read
_READS = 64  # of them at one time: the rest is there for the next

InotifyEvent = tuple[int, int, bytes]  # watch, mask, name in its folder (empty: the folder itself)


class InotifyQueue:
    """The events of one inotify instance. Raises OSError where the user has too many instances (fs.inotify.max_user_instances)."""

    def __init__(self) -> None:
        self.fd = inotify_init()
        if self.fd < 0:
            raise _error()
        os.set_blocking(self.fd, False)
        os.set_inheritable(self.fd, False)

    def add(self, folder: int) -> int:
        """Watch an open folder by its descriptor, which no rename can redirect. Returns the watch; OSError (ENOSPC) where too many exist."""
        watch = inotify_add_watch(self.fd, b"/proc/self/fd/%d" % folder, _MASK)
        if watch < 0:
            raise _error()
        return int(watch)

    def remove(self, watch: int) -> None:
        """End a watch; one that has already gone is no error."""
        inotify_rm_watch(self.fd, watch)  # type: ignore[arg-type]

    def read(self) -> Iterator[InotifyEvent]:
        """The events since the last call, without waiting."""
        for _ in range(_READS):
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return
            yield from parse(data)

    def close(self) -> None:
        """Close the descriptor, which ends all watches."""
        os.close(self.fd)


def parse(data: bytes) -> Iterator[InotifyEvent]:
    """Parse consecutive `struct inotify_event`s; equal events in a row are returned once."""
    at, before = 0, None
    while at < len(data):
        watch, mask, _, length = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        found = (watch, mask, data[at + _HEAD.size : end].rstrip(b"\0"))
        if found != before:
            yield found
        at, before = end, found


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
