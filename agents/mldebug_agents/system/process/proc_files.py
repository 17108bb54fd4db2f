"""Single reads of kernel files (/proc, /sys) that the kernel answers from memory. Nothing raises: a process may go at any moment."""

import contextlib
import itertools
import os

MAX_BYTES = 1 << 20


def read_text(path: str, most: int = MAX_BYTES) -> str:
    """The text of a file, about `most` bytes; "" where it is gone or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    data = bytearray()
    try:
        while len(data) < most and (more := os.read(descriptor, 1 << 16)):
            data += more
    except OSError:
        pass  # ESRCH: it exited between open and read; EPERM: opened, but not for us
    finally:
        os.close(descriptor)
    return data.decode(errors="replace")


def read_short(path: str) -> bytes:
    """A file of at most 4 KiB, which the kernel answers in one piece; b"" where it is gone or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 12)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def read_link(path: str) -> str:
    """The target of a link, which is not followed; "" where the process has ended or the link may not be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def names_in(folder: str) -> list[str]:
    """The names of a folder's entries, sorted; empty where it does not exist or may not be read."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def some_names(folder: str, most: int) -> list[str]:
    """The names of a folder's first `most` entries, of which the kernel lists no more than some hundred others. Raises OSError."""
    with os.scandir(folder) as entries:
        return [one.name for one in itertools.islice(entries, most)]


def first_numbers(folder: str, most: int) -> list[int]:
    """The numbers among those, in ascending order; empty where the folder is gone or may not be read."""
    with contextlib.suppress(OSError):
        return sorted(int(name) for name in some_names(folder, most) if name.isdecimal())
    return []


def numbers_in(folder: str) -> list[int]:
    """The entries of a folder that are numbers, in ascending order; empty where it is gone or may not be read."""
    return sorted(int(name) for name in names_in(folder) if name.isdecimal())
