"""A small file that is written, synced and removed, in the mount child: what `df` says and what can be written differ."""

import contextlib
import errno
import os
import stat
import time

from mldebug_agents.storage.child.messages import CanaryFile, CanaryResult


def write(folder: int, wanted: CanaryFile) -> CanaryResult:
    """Write the file in an open folder and remove it. Errors of the filesystem are in the result; a leftover of an earlier run is removed first."""
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
