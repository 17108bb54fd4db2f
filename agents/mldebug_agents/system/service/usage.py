"""What this agent and its children cost: CPU time and memory (psutil), read as seldom as is enough for a graph."""

import os
import time
from collections.abc import Callable, Iterator

import psutil

from mldebug.status.snapshot import Children
from mldebug_agents.system.host import Host

EVERY = 30.0  # seconds between two counts of the children
MEMORY_EVERY = (
    60.0  # and of memory: a process's page tables are walked for it, some milliseconds each
)


class Usage:
    """CPU time and memory of this process, and of the children of `pid` (this process by default).

    Which these are is read from the kernel's lists of children: `psutil.Process.children` reads all processes of the node. A child
    that sleeps in the kernel (D) is left out of the memory, because reading it could block the main loop.
    """

    def __init__(
        self, host: Host, pid: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._process = psutil.Process(pid)
        self._clock = clock
        self._children: Children | None = None
        self._counted_at = -EVERY
        self._memory: int | None = None
        self._weighed_at = -MEMORY_EVERY

    def cpu_seconds(self) -> float:
        """CPU time of this process in seconds, user and system, whatever `pid` is."""
        return time.process_time()

    def rss_bytes(self) -> int:
        """Resident memory of the process `pid` in bytes; 0 where it cannot be read."""
        try:
            return int(self._process.memory_info().rss)
        except psutil.Error:
            return 0

    def children(self) -> Children | None:
        """Return the number of all processes below the process that is measured, their CPU time in seconds, and the memory
        in bytes that they and it use together. They are counted anew after `EVERY` seconds.

        None where the kernel does not list child processes.
        """
        now = self._clock()
        if now - self._counted_at >= EVERY:
            self._counted_at = now
            self._children = self._count()
        return self._children

    def _count(self) -> Children | None:
        pid = self._process.pid
        if not os.path.exists(f"{self._host.proc}/{pid}/task/{pid}/children"):
            return None
        found = list(_present(self._descendants(pid)))
        # a child that is gone lives on in the "waited for" times of its parent
        seconds = _waited_for(self._process) + sum(map(_cpu, found))
        before = self._children.cpu_seconds if self._children else 0.0
        return Children(
            count=len(found),
            cpu_seconds=max(before, seconds),
            memory_bytes=self._weighed([self._process, *found]),
        )

    def _weighed(self, processes: list[psutil.Process]) -> int | None:
        now = self._clock()
        if now - self._weighed_at >= MEMORY_EVERY:
            self._weighed_at = now
            shares = [share for one in processes if (share := _share(one)) is not None]
            self._memory = sum(shares) if shares else None
        return self._memory

    def _descendants(self, pid: int) -> Iterator[int]:
        for thread in self._threads(pid):
            for child in map(int, self._host.text(pid, f"task/{thread}/children").split()):
                yield child
                yield from self._descendants(child)

    def _threads(self, pid: int) -> list[str]:
        try:
            return os.listdir(f"{self._host.proc}/{pid}/task")
        except OSError:
            return []


def _present(pids: Iterator[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        try:
            yield psutil.Process(pid)
        except psutil.Error:
            continue  # it has just ended


def _cpu(process: psutil.Process) -> float:
    """Its own CPU time and that of the children it has waited for, in seconds; 0 once it is gone."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


def _waited_for(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has ended
        return 0.0
    return float(times.children_user + times.children_system)


def _share(process: psutil.Process) -> int | None:
    """Its proportional share of memory (Pss) in bytes. It is read under a lock of the process, so not where it sleeps in the kernel (D)."""
    try:
        if process.status() == psutil.STATUS_DISK_SLEEP:
            return None
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return None
