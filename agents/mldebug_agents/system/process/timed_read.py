"""Reads one block of an open file past the page cache, and tells how long that took. What was read is thrown away."""

import mmap
import os
import struct
import time
from typing import NamedTuple

_FIGURES = struct.Struct("=3dI")


class TimedRead(NamedTuple):
    """How long one small read took, in seconds: to find the path, to open the file, and to read `bytes` of it."""

    find: float
    open: float
    read: float
    bytes: int


def timed(fd: int, moments: tuple[float, float, float], limit: int, number: int) -> bytes:
    """Read one block of `limit` bytes, the `number`th modulo how many the file has, and return the times for `parse_timed`.

    `fd`: open with O_DIRECT, which the kernel serves from no cache of its own. `moments`: monotonic seconds before the path was
    found, after it, and when the file was open. Raises OSError.
    """
    blocks = max(1, os.fstat(fd).st_size // limit)
    with mmap.mmap(-1, limit) as block:  # at a page's beginning, as O_DIRECT needs it
        begun = time.monotonic()
        count = os.preadv(fd, [block], number % blocks * limit)
        took = time.monotonic() - begun
    before, found, opened = moments
    return _FIGURES.pack(found - before, opened - found, took, count)


def parse_timed(data: bytes) -> TimedRead:
    """The times that `timed` returned."""
    return TimedRead(*_FIGURES.unpack(data))
