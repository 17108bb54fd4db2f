"""Watches processes end through pidfds, and reads their exit status although a launcher reaps them at once.

A pidfd becomes readable when its process has ended. The status is read from the zombie, where we
may see it while it exists; from Linux 6.15 on also from the pidfd of a reaped process, by any user.
Else it is unknown. The order of exits is always known, except among those found at one wake-up,
which have the same `moment`.
"""

import contextlib
import fcntl
import os
import queue
import resource
import select
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mldebug.jobs.owners import Owner
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.details import exit_status

MAX_WATCHED = 1024
PATIENCE = 2.0  # seconds until a zombie that does not tell us its status must be reaped
_AGAIN = 20  # milliseconds between two questions
_INFO = struct.Struct("=Q52xi")  # struct pidfd_info: mask, ids, exit code
_INFO_EXIT = 1 << 3
_GONE = -1  # in place of a pidfd
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # ioctl PIDFD_GET_INFO


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """A watched process has ended. `status`: its wait(2) status word, None where the kernel did not report it."""

    pid: int
    start_ticks: int
    at: float  # unix
    moment: int  # counts wake-ups: equal numbers came together
    status: int | None = None


class _Request(NamedTuple):
    """A process that shall be watched. `fd`: its pidfd; None where there is none, `_GONE` where there is no such process."""

    pid: int
    start_ticks: int
    owner: Owner | None
    fd: int | None


class ExitWatch:
    """Watches processes in one thread.

    At most `limit` (0: as the limit of open files allows); others are counted in `left_out` and
    never reported. Where there are more, those of the owner who has most are left out. `tell` is called in that thread for every exit, and must not block.
    """

    def __init__(self, host: Host, tell: Callable[[ProcessExit], None], limit: int = 0) -> None:
        self.limit = limit or _max_watched()
        self.left_out = 0  # processes that were not watched because there was no room
        self._host = host
        self._tell = tell
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._held: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, start)
        self._owners: dict[int, Owner | None] = {}  # pidfd -> whose process it is
        self._unresolved: dict[int, tuple[ProcessExit, float]] = {}  # pidfd -> exit, patience until
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.POLLIN)
        self._moment = 0
        self._open = True
        self._thread = threading.Thread(target=self._run, name="mldebug-exits", daemon=True)
        self._thread.start()

    def watch(self, pid: int, start_ticks: int = 0, owner: Owner | None = None) -> None:
        """Watch one process. If it is gone, or its pid belongs to a process with another start
        time, it is reported as exited with unknown status.

        `start_ticks`: its start in clock ticks since boot; 0: whichever process has the pid now.
        `owner`: of its job, between whom the room is shared out; None: not known.
        It is held from here on: its parent may reap it before the thread has its turn.
        """
        if not self._open:
            return
        self._requests.put(_Request(pid, start_ticks, owner, _opened(pid)))
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the thread (waits at most 2 s) and watch no process any more."""
        if self._open:
            self._open = False
            os.eventfd_write(self._wake, 1)
            self._thread.join(2.0)
            if (
                not self._thread.is_alive()
            ):  # it may end before it is woken: the descriptor stays ours until here
                os.close(self._wake)

    # --- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._open:
            ready = [fd for fd, _ in self._poll.poll(_AGAIN if self._unresolved else None)]
            self._moment += 1
            for fd in ready:
                if fd != self._wake:
                    self._ended(fd)
            for fd in list(self._unresolved):
                self._resolve(fd)
            if self._wake in ready:
                self._take_requests()
        while not self._requests.empty():
            opened = self._requests.get().fd
            if opened is not None and opened != _GONE:
                os.close(opened)
        for fd in (*self._held, *self._unresolved):
            os.close(fd)

    def _take_requests(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._requests.empty():
            self._hold(*self._requests.get())

    def _hold(self, pid: int, start_ticks: int, owner: Owner | None, fd: int | None) -> None:
        if fd == _GONE:
            self._tell(self._exit(pid, start_ticks))
            return
        if fd is None:
            self.left_out += 1
            return
        if len(self._held) >= self.limit:
            self.left_out += 1
            if not self._make_space(owner):
                os.close(fd)
                return
        stat = self._host.brief(pid)
        if stat is None:  # reaped since `watch`: the kernel may still know how it ended
            self._unresolved[fd] = (self._exit(pid, start_ticks), time.monotonic())
            self._resolve(fd)
            return
        if start_ticks not in (0, stat.start_ticks):
            os.close(fd)  # gone, and somebody else has its number
            self._tell(self._exit(pid, start_ticks))
            return
        self._held[fd] = (pid, stat.start_ticks)
        self._owners[fd] = owner
        self._poll.register(fd, select.POLLIN)

    def _make_space(self, owner: Owner | None) -> bool:
        """Let go of the newest process of the owner with most processes, unless that is this owner, or has only one more than this owner."""
        counts = Counter(self._owners.values())
        most, number = counts.most_common(1)[0]
        if most == owner or number <= counts[owner] + 1:
            return False
        fd = next(fd for fd in reversed(self._held) if self._owners[fd] == most)
        self._poll.unregister(fd)
        del self._held[fd], self._owners[fd]
        os.close(fd)
        return True

    def _ended(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._owners[fd]
        self._unresolved[fd] = (self._exit(*self._held.pop(fd)), time.monotonic() + PATIENCE)

    def _exit(self, pid: int, start_ticks: int) -> ProcessExit:
        return ProcessExit(pid=pid, start_ticks=start_ticks, at=time.time(), moment=self._moment)

    def _resolve(self, fd: int) -> None:
        """Report an exit as soon as its status is known, or can no longer be known."""
        process_exit, until = self._unresolved[fd]
        stat = self._host.brief(process_exit.pid)
        there = stat is not None and stat.start_ticks == process_exit.start_ticks
        status = remembered_status(fd)
        if status is None and stat is not None and there:
            status = exit_status(stat, self._host.status(process_exit.pid).uid)
        if status is None and there and time.monotonic() < until:
            return
        del self._unresolved[fd]
        os.close(fd)
        self._tell(msgspec.structs.replace(process_exit, status=status))


def _opened(pid: int) -> int | None:
    """A pidfd of this process; None without one (no descriptor left, or a kernel without pidfds), `_GONE` without the process."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return _GONE
    except OSError:
        return None


def remembered_status(fd: int) -> int | None:
    """The wait(2) status word of a reaped process, as its pidfd keeps it; None before, and on older kernels."""
    info = bytearray(_INFO.pack(_INFO_EXIT, 0))
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return None
    mask, status = _INFO.unpack(info)
    return status & 0xFFFF if mask & _INFO_EXIT else None


def _max_watched() -> int:
    """Half of the descriptors that this process may have, and no more than `MAX_WATCHED`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_WATCHED if soft == resource.RLIM_INFINITY else min(MAX_WATCHED, soft // 2)
