"""Writes to files that may have no reader any more, never waiting past a deadline.

Non-blocking mode belongs to a pipe and so to all its writers, and is not changed: the pipe is opened again for one print. Where
that is impossible (a socket, another user's pipe), a thread writes, and is left behind if it hangs. A regular file is written
directly, since it makes a writer wait only where its file server is dead.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.signals import closed, shielded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_left_behind: list[threading.Thread] = []


def write_all(fd: int, pieces: Sequence[bytes], until: float) -> int:
    """Write the pieces in order until `until` (monotonic seconds; a regular file: without limit). Returns how many were
    written. Raises OSError where writing fails.
    """
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return _each(fd, pieces, None)
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        again = os.open(f"/proc/self/fd/{fd}", flags)
    except OSError as error:
        pass_on(error)
        return _by_thread(fd, pieces, until)
    try:
        return _each(again, pieces, until)
    finally:
        os.close(again)


def _each(fd: int, pieces: Sequence[bytes], until: float | None) -> int:
    """`until` None: the descriptor blocks, and that is fine."""
    return shielded(signal.SIGPIPE, _in_order, fd, pieces, until)


def _in_order(fd: int, pieces: Sequence[bytes], until: float | None) -> int:
    for count, piece in enumerate(pieces):
        if not _one(fd, piece, until):
            return count
    return len(pieces)


def _one(fd: int, piece: bytes, until: float | None) -> bool:
    """A pipe takes all of it or nothing; a terminal or a full disk may take a part."""
    while piece:
        try:
            piece = piece[os.write(fd, piece) :]
        except BlockingIOError:
            left = 0.0 if until is None else until - time.monotonic()
            if left <= 0:
                return False
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll(min(left, 0.05) * 1000)
        except OSError as error:  # nobody has it open any more, or no room
            pass_on(error)
            return False
    return True


def _by_thread(fd: int, pieces: Sequence[bytes], until: float) -> int:
    _left_behind[:] = [one for one in _left_behind if one.is_alive()]
    if _left_behind:
        return 0
    mine = os.dup(fd)  # the caller may close its own before the thread is through
    done: list[int] = []

    def work() -> None:
        try:
            done.append(_each(mine, pieces, None))
        finally:
            os.close(mine)

    thread = threading.Thread(target=work, name="mldebug-print", daemon=True)
    closed(thread.start)
    thread.join(max(0.01, until - time.monotonic()))
    if thread.is_alive():
        _left_behind.append(thread)
    return done[0] if done else 0
