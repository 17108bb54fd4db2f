"""What this agent and its children cost: CPU time and memory, read from /proc, as seldom as is enough for a graph."""

import os
import re
import resource
import time
from collections.abc import Callable, Iterator

from mldebug.status.snapshot import Children
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import TICKS

_PSS = re.compile(r"^Pss: +(\d+) kB$", re.MULTILINE)
EVERY = 10.0  # seconds between two counts of the children
MEMORY_EVERY = (
    60.0  # and of memory: a process's page tables are walked for it, some milliseconds each
)


class Usage:
    """CPU time and memory of this process, and of the children of `pid` (this process by default).

    A child that sleeps in the kernel (D) is left out of the memory, because reading it could block
    the main loop.
    """

    def __init__(
        self, host: Host, pid: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._pid = os.getpid() if pid is None else pid
        self._clock = clock
        self._children: Children | None = None
        self._counted_at = -EVERY
        self._memory: int | None = None
        self._weighed_at = -MEMORY_EVERY

    def cpu_seconds(self) -> float:
        """CPU time of this process in seconds, user and system, whatever `pid` is."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def rss_bytes(self) -> int:
        """Resident memory of the process `pid` in bytes; 0 where it cannot be read."""
        return self._rss(self._pid)

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
        if not os.path.exists(f"{self._host.proc}/{self._pid}/task/{self._pid}/children"):
            return None
        pids = list(self._descendants(self._pid))
        # a child that is gone lives on in the "waited for" times of its parent
        seconds = self._waited_for(self._pid) + sum(map(self._cpu, pids))
        before = self._children.cpu_seconds if self._children else 0.0
        return Children(
            count=len(pids),
            cpu_seconds=max(before, seconds),
            memory_bytes=self._weighed([self._pid, *pids]),
        )

    def _weighed(self, pids: list[int]) -> int | None:
        now = self._clock()
        if now - self._weighed_at >= MEMORY_EVERY:
            self._weighed_at = now
            self._memory = self._shared_fairly(pids)
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

    def _cpu(self, pid: int) -> float:
        return self._ticks(pid, 11, 13) + self._waited_for(pid)

    def _waited_for(self, pid: int) -> float:
        return self._ticks(pid, 13, 15)

    def _ticks(self, pid: int, first: int, end: int) -> float:
        """Fields of stat counted from the state, which follows the name: 11 and 12 utime and stime, 13 and 14 theirs."""
        fields = self._host.text(pid, "stat").rpartition(")")[2].split()[first:end]
        return sum(map(int, fields)) / TICKS

    def _shared_fairly(self, pids: list[int]) -> int | None:
        """The sum of Pss; it walks page tables under a lock, so a child that sleeps in the kernel (D) is left out."""
        texts = [self._host.text(pid, "smaps_rollup") for pid in pids if self._state(pid) != "D"]
        kibibytes = [int(found[1]) for text in texts if (found := _PSS.search(text))]
        return sum(kibibytes) * 1024 if kibibytes else None

    def _state(self, pid: int) -> str:
        return self._host.text(pid, "stat").rpartition(")")[2].lstrip()[:1]

    def _rss(self, pid: int) -> int:
        fields = self._host.text(pid, "statm").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0
