"""Rings and source text from files of this machine, for the commands: opened with care, for either may be anybody's."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from mldebug.capture.trace.layout import MAGIC, PREFIX
from mldebug.capture.trace.line_format import is_source, nth_line
from mldebug.capture.trace.reader import Read
from mldebug.core.errors import AccessError, EvidenceError

WHERE = (
    "a traced process keeps its ring where `mldebug trace run --ring` says, else in /dev/shm as "
    f"{PREFIX}PID-START"
)
BEFORE = ".before"  # behind the name of a ring that an earlier launch has left, as `trace run` puts it aside
MAX_SOURCE = 4 << 20  # bytes of a source file
MAX_FILES = 65_536  # of a folder


@contextmanager
def open_ring(file: Path) -> Iterator[Read]:
    """A context with a function `read(offset, size)` for a ring file. Raises EvidenceError or AccessError, with what to do, where
    the file cannot be opened or is no regular file.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(file, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise EvidenceError(f"{file} is no regular file, and so no trace ring", WHERE)
        yield lambda at, size: os.pread(descriptor, size, at)
    finally:
        os.close(descriptor)


def _unreadable(file: Path, error: OSError) -> EvidenceError | AccessError:
    if isinstance(error, PermissionError):
        return AccessError(
            f"this user may not read {file}", "ask as the owner of the job, or as root"
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return EvidenceError(f"there is no trace ring {file}", WHERE)
    return EvidenceError(f"cannot read {file}: {error.strerror or error}", WHERE)


def ring_files(paths: tuple[Path, ...]) -> list[Path]:
    """The ring files that these paths name: a file as it is, of a folder those files in it that begin as a ring does. Raises
    EvidenceError for a folder without any.
    """
    found: list[Path] = []
    for path in paths:
        found += _in_folder(path) if path.is_dir() else [path]
    return found


def _in_folder(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))[:MAX_FILES]
    except OSError as error:
        raise _unreadable(folder, error) from error
    rings = [
        folder / name for name in names if not name.endswith(BEFORE) and is_ring(folder / name)
    ]
    if not rings:
        raise EvidenceError(f"there is no trace ring in {folder}", WHERE)
    return rings


def is_ring(file: Path) -> bool:
    """Whether this user may read the file, and it begins as a ring file (call trace) does."""
    try:
        with open_ring(file) as read:
            return read(0, len(MAGIC)) == MAGIC
    except (EvidenceError, AccessError, OSError):
        return False  # whoever shows it says why it cannot


@lru_cache(maxsize=64)
def _text(path: str) -> bytes:
    """A whole source file; empty where it cannot be had."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        facts = os.fstat(descriptor)
        regular = stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_SOURCE
        return os.read(descriptor, MAX_SOURCE) if regular else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


@lru_cache(maxsize=65_536)
def source_here(path: str, line: int) -> str:
    """The text of a line of a Python file on this machine, "" where there is none."""
    return nth_line(_text(path), line) if is_source(path) else ""
