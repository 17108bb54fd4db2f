"""A file that mldebug has open in the job's process, where the job may close any descriptor, and its number may then be given to another
file.

Before each use fstat checks that the descriptor still belongs to our file. Between check and use another thread may still close and
open one; that gap of microseconds cannot be closed, so nothing else is done in it.
"""

from __future__ import annotations

import os

from mldebug_training.common.interrupted import pass_on


class OwnFile:
    """An open file, known by its device and inode. Where the job has closed the descriptor and its number belongs to another
    file, that is never used or closed.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd  # -1: none, or no longer ours
        self._which, _ = _about(fd)

    def mine(self) -> bool:
        """Whether the descriptor still belongs to this file; False where the job has closed it."""
        return self.size() >= 0

    def size(self) -> int:
        """The file's size in bytes; -1 where its descriptor was closed or reused by the job."""
        if self.fd < 0:
            return -1
        which, size = _about(self.fd)
        if which != self._which:
            self.fd = size = -1
        return size

    def write(self, data: bytes) -> None:
        """Write all of the data at the file's present position. Raises OSError; does nothing where the job has closed the
        descriptor.
        """
        left = memoryview(data)
        while len(left) and self.mine():
            left = left[os.write(self.fd, left) :]

    def close(self) -> None:
        """Close the file, unless the job has closed it."""
        if self.mine():
            fd, self.fd = self.fd, -1
            os.close(fd)


def shared(fd: int, size: int) -> memoryview:
    """Map the first `size` bytes of the open file `fd` into memory, writable and shared with other processes, for as long as this
    process lives. Raises OSError.

    The module mmap is not used: it duplicates the descriptor and closes that later, when its number may belong to a file of the
    job.
    """
    import ctypes  # PyTorch has brought it

    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    read_write, map_shared = 1 | 2, 1
    at = call(None, size, read_write, map_shared, fd, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return memoryview((ctypes.c_char * size).from_address(at)).cast("B")


def _about(fd: int) -> tuple[tuple[int, int] | None, int]:
    """Which file it is, and its size; None and -1 where the number is free."""
    try:
        found = os.fstat(fd)
    except OSError as error:
        pass_on(error)
        return None, -1
    return (found.st_dev, found.st_ino), found.st_size
