"""Has the C library give large blocks of memory back to the kernel as soon as they are freed.

Left to itself it keeps up to 64 MiB for each thread that once held a large block, since it takes the next one to be as large: an agent
through which a profile of 20 MiB passed stayed 60 to 85 MiB larger from then on.
"""

import ctypes
from contextlib import suppress

LARGE = 1 << 20  # bytes
_MMAP_THRESHOLD = -3  # of mallopt(3)


def give_back_large_blocks() -> None:
    """From now on blocks of `LARGE` bytes and more leave this process, and what it forks, when they are freed. Nothing where the C library
    has no such setting (musl gives them back anyway).
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE)
