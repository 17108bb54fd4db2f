"""Reads and writes files and folders safely.

Written files are fsynced and a folder appears under its name all at once, so a reader sees all of it or nothing.
A folder may belong to a user who puts anything there: reading follows no symlink, waits for no FIFO, trusts no size.
"""

import contextlib
import ctypes
import errno
import gc
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from mldebug.core.errors import AccessError, EvidenceError, UsageError
from mldebug.core.owned_trees import facts_of, is_there, remove_tree

MAX_FILE_BYTES = 64 << 20
OLD = ".old"  # ends the name of a report that is being replaced where that takes two steps
NOT_THERE = "is the path right, and is it on this machine?"
BAD_DISK = "look at the disk or file server that it is on"
NOT_WHOLE = "it was cut off or changed after it was written: copy it again, or take another report"
NOT_OURS = "mldebug did not write it like this: remove it, or look at another report"

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_T = TypeVar("_T")


def read_struct(file: Path, wanted: type[_T]) -> _T:
    """Read a JSON file as a value of the struct type `wanted`. Raises EvidenceError or AccessError where it cannot be read or is
    malformed.
    """
    return _decode(read_bytes(file), wanted, file)


def read_bytes(file: Path) -> bytes:
    """The content of a regular file of limited size. Raises EvidenceError or AccessError where that is not possible, also where
    the file or its folder is a symbolic link.
    """
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            handle = os.open(
                file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
        finally:
            os.close(folder)
    except OSError as error:
        raise unreadable(file, error) from error
    try:
        return _read_bounded(handle, file)
    finally:
        os.close(handle)


def read_secret(file: Path, way_out: str, most: int, *, any_group: bool = False) -> bytes:
    """Read at most `most` bytes of a private file of root or of this user, which only they and one of our groups may read (with
    `any_group` the file's group, whichever it is, may read it); symbolic links, as in pods' secrets, are followed. Raises UsageError,
    with `way_out`, for any other file.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", way_out) from error
    with open(fd, "rb") as opened:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{file} is no file of root or of this user", way_out)
        ours = any_group or found.st_gid in (0, os.getegid(), *os.getgroups())
        if found.st_mode & (0o037 if ours else 0o077):
            raise UsageError(f"{file} can be read by others", f"chmod 600 {file}")
        return opened.read(most)


def check_unmounted(file: Path) -> None:
    """Raise EvidenceError where a filesystem is mounted on the file: such a one may never answer. Any other trouble with the file is raised when it is read."""
    try:
        facts_of(file)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise EvidenceError(f"{file} is mounted from elsewhere", NOT_OURS) from error


def unreadable(path: Path, error: OSError) -> EvidenceError | AccessError:
    """The error to raise for a file or folder that the operating system refused to read: AccessError for a missing right, else
    EvidenceError.
    """
    if isinstance(error, PermissionError):
        return AccessError(
            f"this user may not read {path}", "ask as the owner of the job, or as root"
        )
    if error.errno == errno.ELOOP:
        return EvidenceError(
            f"cannot read {path}: it is a symbolic link", "put the file itself in its place"
        )
    away = error.errno in (errno.ENOENT, errno.ENOTDIR)
    return EvidenceError(
        f"cannot read {path}: {error.strerror or error}", NOT_THERE if away else BAD_DISK
    )


def _read_bounded(handle: int, file: Path) -> bytes:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise EvidenceError(f"{file} is not a regular file", NOT_OURS)
    if status.st_size > MAX_FILE_BYTES:
        raise EvidenceError(
            f"{file} has {status.st_size:,} bytes, more than {MAX_FILE_BYTES:,}", NOT_OURS
        )
    return _drain(handle, MAX_FILE_BYTES)


def _drain(handle: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(handle, min(limit, 1 << 20))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _decode(content: bytes, wanted: type[_T], file: Path) -> _T:
    try:
        return msgspec.json.decode(content, type=wanted)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        why = str(error).removeprefix("JSON is malformed: ")[:200]
        raise EvidenceError(f"{file} is malformed: {why}", NOT_WHOLE) from error


# --- writing -------------------------------------------------------------------------------------


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    (folder / "evidence").mkdir(mode=0o700)
    for name, content in contents.items():
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(handle)
    _sync_folder(folder / "evidence")
    _sync_folder(folder)


def give(folder: Path, owner_uid: int | None) -> None:
    """Give a report's folder and the files in it to the user `owner_uid`, the folder itself last: until then only root can enter
    it.

    Does nothing unless root calls it. Root of a container may lack the right (CAP_CHOWN): then they stay root's.
    """
    if owner_uid is None or os.geteuid() != 0:
        return
    with contextlib.suppress(PermissionError):
        for path in (*folder.glob("evidence/*"), *folder.glob("*"), folder):
            os.chown(path, owner_uid, -1, follow_symlinks=False)


def add_folder(temporary: Path, target: Path) -> bool:
    """Rename the folder `temporary` to `target` atomically. False where a folder with that name exists and is not empty."""
    try:
        os.rename(temporary, target)  # fails on a folder with something in it
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    _sync_folder(target.parent)
    return True


def replace_folder(temporary: Path, target: Path) -> None:
    """Put the folder `temporary` in the place of `target` and remove what was there. Atomic where the filesystem can exchange two
    names; elsewhere a crash can leave the old folder under another name.
    """
    if not is_there(target):
        os.rename(temporary, target)
    elif _exchange(temporary, target):
        remove_tree(temporary)
    else:
        old = temporary.with_name(f"{temporary.name}{OLD}")
        os.rename(target, old)
        os.rename(temporary, target)
        remove_tree(old)
    _sync_folder(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """renameat2(RENAME_EXCHANGE); False where the file system or the C library has none (NFS, musl)."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return bool(done == 0)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """A context in which Python's cyclic garbage collector is off: while a hundred thousand objects are read, it would take a
    fifth of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
