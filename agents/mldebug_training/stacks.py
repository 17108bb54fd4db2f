"""The stacks of all threads, written by the C code of faulthandler when a real-time signal comes.

That works where nobody may attach and while C code holds the interpreter lock. Whoever sends the signal must see first that
it is caught: its default action ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal

from mldebug_training.record import reserve

SUFFIX = ".stacks"
ROOM = 256 << 10  # bytes, reserved ahead: a /dev/shm that is full by then costs nothing
REWIND_EVERY = 64  # steps
_CANDIDATES = 8  # signals below the last that are tried


def arm(path: str) -> tuple[int, int]:
    """Have a signal that nobody uses write into `path`.stacks. Returns signal and descriptor; 0 and -1 where that fails."""
    number = _free_signal()
    if not number:
        return 0, -1
    try:
        fd = reserve(path + SUFFIX, ROOM)
        faulthandler.register(number, file=fd, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError):
        return 0, -1
    return number, fd


def disarm(number: int) -> None:
    """The process ends: a signal that still comes is ignored."""
    if number:
        signal.signal(number, signal.SIG_IGN)
        faulthandler.unregister(number)


def rewind(fd: int) -> None:
    """Write the next stacks at the beginning again: the process moves, so nobody reads the last ones any more."""
    try:
        if os.lseek(fd, 0, os.SEEK_CUR) > ROOM // 2:
            os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        pass


def remove(path: str) -> None:
    """Take the file away."""
    try:
        os.unlink(path + SUFFIX)
    except OSError:
        pass


def _free_signal() -> int:
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMAX - 1 - _CANDIDATES, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            return int(number)
    return 0
