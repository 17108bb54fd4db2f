"""Folders in which their owner may put anything: links, ten thousand folders in each other, and mounts. Their size, and
their removal.

A filesystem that a user has mounted (FUSE) is served by a program of that user, which may never answer. So none is entered: what is to be
opened is held by an O_PATH descriptor first, which asks no filesystem, and left alone where it is another mount than its folder.
"""

import contextlib
import ctypes
import errno
import itertools
import os
import re
import secrets
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

MAX_ENTRIES = 100_000  # that one removal goes through: what is left is for the next
MAX_SECONDS = 3.0
MAX_COUNTED = 20_000  # files and folders of one report; one of 1,024 nodes has 2,050
MAX_DEPTH = 64  # folders in each other whose sizes are counted
HUGE = 1 << 50  # bytes: what is too much to be counted

_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2, _NO_XDEV = 437, 0x01  # the same number on every architecture; RESOLVE_NO_XDEV
_libc = ctypes.CDLL(None, use_errno=True)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOUNT = re.compile(rb"^mnt_id:\s*(\d+)$", re.MULTILINE)


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """A context with an O_PATH descriptor of what is there, a link itself too. The folder it is in is trusted.

    Raises OSError, EXDEV where something is mounted on it.
    """
    above = os.open(path.parent, _HELD & ~os.O_NOFOLLOW | os.O_DIRECTORY)
    with _closing(above), _inside(path.name, above) as handle:
        yield handle


def facts_of(path: Path) -> os.stat_result:
    """`lstat` that asks no filesystem that somebody may have mounted there: raises OSError then (EXDEV)."""
    with held(path) as handle:
        return os.fstat(handle)


def is_there(path: Path) -> bool:
    """`os.path.lexists` that asks no filesystem that somebody may have mounted there."""
    try:
        facts_of(path)
    except OSError as error:
        return error.errno == errno.EXDEV
    return True


def _inside(name: str, folder: int) -> "contextlib.AbstractContextManager[int]":
    """The same of what is in a folder that is held."""
    return _closing(_hold(name, folder))


def _hold(name: str, folder: int) -> int:
    how = struct.pack("<QQQ", _HELD, 0, _NO_XDEV)
    handle = int(_libc.syscall(_OPENAT2, folder, os.fsencode(name), how, len(how)))
    if handle >= 0:
        return handle
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EPERM):  # before Linux 5.6, or a filter of system calls
        raise OSError(number, os.strerror(number))
    handle = os.open(name, _HELD, dir_fd=folder)
    if _mount_of(handle) != _mount_of(folder):
        os.close(handle)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return handle


@contextlib.contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def _mount_of(handle: int) -> bytes:
    """The number of the mount that it is on, of which the kernel knows by itself."""
    with open(f"/proc/self/fdinfo/{handle}", "rb") as file:
        found = _MOUNT.search(file.read(4096))
    return found[1] if found else b""


def _listed(handle: int) -> Iterator["os.DirEntry[str]"]:
    """What is in a folder that is held."""
    with _closing(os.open(f"/proc/self/fd/{handle}", _FOLDER)) as opened, os.scandir(opened) as found:  # fmt: skip
        yield from found


def remove_tree(path: Path, most: int = MAX_ENTRIES, seconds: float = MAX_SECONDS) -> bool:
    """Remove a file, or a folder with all in it, within `most` entries and `seconds`. False where something is left; errors of
    the filesystem are not raised. No link is followed, and no other mount is entered.

    Its owner may have nested ten thousand folders: the content of each inner folder is moved up first, so neither a call nor a
    path gets deeper than two.
    """
    with contextlib.suppress(OSError):
        os.unlink(path)  # a file, or a link
        return True
    with contextlib.suppress(OSError), held(path) as handle:
        _empty(handle, most, time.monotonic() + seconds)
        os.rmdir(path)
    return not is_there(path)


def _empty(top: int, left: int, until: float) -> None:
    """Remove what is in the folder that is held, as long as entries are `left` and there is time; each is removed, or moved up once."""
    moved, mark = 0, secrets.token_hex(6)  # a name that nobody can have taken
    stay: set[str] = set()  # what may not be removed, as mounts
    while left > 0 and (names := [one for one in _names(top, left) if one not in stay]):
        left -= len(names)
        for name in names:
            if time.monotonic() > until:
                return
            if _unlink(name, top):
                continue
            # it went meanwhile, or may not be removed: then it is one of those that stay
            stay.add(name)
            with contextlib.suppress(OSError):
                with _inside(name, top) as handle:
                    inner = _names(handle, left)
                    left -= len(inner)
                    for each in inner:
                        moved += 1
                        if not _unlink(each, handle):
                            os.rename(each, f".{mark}-{moved}", src_dir_fd=handle, dst_dir_fd=top)
                os.rmdir(name, dir_fd=top)
                stay.discard(name)


def _names(folder: int, most: int) -> list[str]:
    return [one.name for one in itertools.islice(_listed(folder), most)]


def _unlink(name: str, folder: int) -> bool:
    """Remove a file; False where it is none. (To try `rmdir` on a folder that is not empty costs as much as all below it.)"""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
        return True
    return False


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder, without following links; `HUGE` where it has more entries than are counted. What cannot
    be read, and what is mounted there, is left out.
    """
    total = 0
    with contextlib.suppress(OSError), held(folder) as top:
        for number, size in enumerate(_sizes(top, MAX_DEPTH), start=1):
            if number > MAX_COUNTED:
                return HUGE
            total += size
    return total


def _sizes(folder: int, deeper: int) -> Iterator[int]:
    """Bytes of each file, and 0 for each folder, below a folder that is held."""
    for entry in _listed(folder):
        with contextlib.suppress(OSError), _inside(entry.name, folder) as handle:
            facts = os.fstat(handle)
            yield 0 if stat.S_ISDIR(facts.st_mode) else facts.st_size
            if stat.S_ISDIR(facts.st_mode) and deeper:
                yield from _sizes(handle, deeper - 1)
