"""Lists what lies below a folder, in the reader child: names, kinds, sizes, times.

Links are listed and never followed, another file system (an automount, too) is listed and never
entered, and both the number of entries and the time are limited. The highest numbers in names come
first, so that of very many checkpoints the newest are listed. Wire format: `HEAD` (what was left
out), then for each entry `ENTRY` and its path below the folder.
"""

import os
import re
import stat
import struct
import time
from enum import IntFlag
from typing import NamedTuple

from mldebug_agents.system.child.job_paths import PATH, Access, closing, reopen
from mldebug_agents.system.child.refusals import Refused

HEAD = struct.Struct("<BQ")  # Left, entries that were left out
ENTRY = struct.Struct("<HBQdQI")  # bytes of the path, kind, size, mtime, inode, uid
KINDS = ("file", "folder", "link", "other")
LONGEST = 1.2  # seconds, within the deadline of whoever asks
MAX_NAMES = 200_000  # of one folder
_NUMBERS = re.compile(rb"\d{1,18}")
_HOLD = PATH | os.O_DIRECTORY | os.O_NOFOLLOW


class LeftOut(IntFlag):
    """Why entries are missing from a listing."""

    MANY = 1
    TIME = 2
    DENIED = 4
    GONE = 8  # it was removed while it was read
    OTHER = 16  # another file system lies there


class ListedFile(NamedTuple):
    """An entry of a folder. `path` is relative, in bytes as the kernel has them."""

    path: str
    kind: str
    size: int
    mtime: float
    inode: int
    uid: int


class FolderListing(NamedTuple):
    """A listing of a folder.

    It is complete where `left` is empty; else `left` says why entries are missing, `left_out` how
    many.
    """

    entries: tuple[ListedFile, ...]
    left: LeftOut = LeftOut(0)
    left_out: int = 0


def listed(handle: int, access: Access, most: int, depth: int) -> bytes:
    """List what lies below the folder behind an O_PATH descriptor, as packed bytes (see `unpack`).
    Raises OSError or `Refused` where it cannot be opened.

    `most`: entries at most; `depth`: levels of folders.
    """
    folder = reopen(handle, access, folder=True)
    walk = _Walk(access, most, os.fstat(folder).st_dev)
    walk.take(folder, b"", depth)
    return HEAD.pack(walk.left, walk.left_out) + b"".join(walk.entries)


class _Walk:
    """One walk, within its limits."""

    def __init__(self, access: Access, most: int, device: int) -> None:
        self._access = access
        self.entries: list[bytes] = []
        self.left = LeftOut(0)
        self.left_out = 0
        self._most = most
        self._device = device
        self._until = time.monotonic() + LONGEST

    def take(self, folder: int, above: bytes, depth: int) -> None:
        """Take what lies in this folder, which is closed, then what lies below."""
        try:
            names = self._names(folder)
            for number, name in enumerate(names):
                if len(self.entries) >= self._most or time.monotonic() > self._until:
                    self.left |= LeftOut.MANY if len(self.entries) >= self._most else LeftOut.TIME
                    self.left_out += len(names) - number
                    return
                self._entry(folder, above, name, depth)
        finally:
            os.close(folder)

    def _names(self, folder: int) -> list[bytes]:
        names: list[bytes] = []
        with os.scandir(folder) as found:
            for one in found:
                if len(names) >= MAX_NAMES or (len(names) % 512 == 511 and time.monotonic() > self._until):  # fmt: skip
                    self.left |= LeftOut.MANY
                    self.left_out += 1
                    break
                names.append(os.fsencode(one.name))
        return sorted(names, key=_newest_first)

    def _entry(self, folder: int, above: bytes, name: bytes, depth: int) -> None:
        try:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            self.left |= LeftOut.GONE
            return
        except OSError:
            self.left |= LeftOut.DENIED
            return
        path, kind = above + name, _kind(facts.st_mode)
        self.entries.append(ENTRY.pack(len(path), kind, facts.st_size, facts.st_mtime, facts.st_ino, facts.st_uid) + path)  # fmt: skip
        if KINDS[kind] == "folder" and depth > 1:
            self._below(folder, name, path, facts.st_dev, depth)

    def _below(self, folder: int, name: bytes, path: bytes, device: int, depth: int) -> None:
        if device != self._device:
            self.left |= LeftOut.OTHER
            return
        try:
            with closing(os.open(name, _HOLD, dir_fd=folder)) as held:
                inner = reopen(held, self._access, folder=True)
        except FileNotFoundError:
            self.left |= LeftOut.GONE
        except (OSError, Refused):
            self.left |= LeftOut.DENIED
        else:
            self.take(inner, path + b"/", depth - 1)


def _kind(mode: int) -> int:
    if stat.S_ISREG(mode):
        return 0
    return 1 if stat.S_ISDIR(mode) else 2 if stat.S_ISLNK(mode) else 3


def _newest_first(name: bytes) -> tuple[list[int], bytes]:
    return [-int(one) for one in _NUMBERS.findall(name)], name


def unpack(data: bytes) -> FolderListing:
    """The listing in the bytes that `listed` returned."""
    left, left_out = HEAD.unpack_from(data)
    found, at = [], HEAD.size
    while at < len(data):
        length, kind, size, mtime, inode, uid = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        path = os.fsdecode(data[at : at + length])
        found.append(ListedFile(path, KINDS[kind], size, mtime, inode, uid))
        at += length
    return FolderListing(tuple(found), LeftOut(left), left_out)
