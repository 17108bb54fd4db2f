"""What it costs to read what the kernel says of processes: some of these files are as long as a process likes, and are made anew for each read.

An epoll or inotify descriptor has a line for each of its watches in its fdinfo, any file one for each of its locks, and
`status` names all groups of a process, 65,536 of them where root of a container wants so. The kernel writes the whole
file before the first byte is read, so that a short read costs as much; one process with thousands of such descriptors took
a minute of an agent. So a dear read of a long file is put down to the owner of the process, and who owes too much is not read for a
while. A short file that takes long says that the machine is slow (an emulated one, a kernel with checks), which is nobody's fault.
"""

import threading
import time
from collections.abc import Callable

LONG = 1 << 14  # characters; usual ones have some hundred
DEAR = 0.001  # CPU seconds of one read: twenty times and more what one of these files takes
MOST = 0.1  # CPU seconds of dear reads that one owner may owe; who owes more is not read until all is regained
REGAINED = 0.01  # of them in a second

Owner = tuple[int, str]


class ReadCosts:
    """The CPU time that dear reads of each owner's processes have taken lately. Any thread may ask."""

    def __init__(
        self,
        owner: Callable[[int], Owner],
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        """`owner`: of the process with a pid; `used`: the CPU seconds of this thread."""
        self._owner, self._clock, self._used = owner, clock, used
        self._lock = threading.Lock()
        self._debts: dict[Owner, float] = {}
        self._refused: set[Owner] = set()  # whose debt was too large, and is not paid back
        self._at = clock()

    def read(self, pid: int, read: Callable[[], str]) -> str:
        """The text that `read` returns, which reads one file of this process; "" where its owner owes too much."""
        if self._refused and self._is_refused(pid):
            return ""
        before = self._used()
        found = read()
        took = self._used() - before
        if took > DEAR and len(found) > LONG:
            self._charge(pid, took)
        return found

    def _is_refused(self, pid: int) -> bool:
        with self._lock:
            self._forgive()
        return bool(self._refused) and self._owner(pid) in self._refused

    def _charge(self, pid: int, seconds: float) -> None:
        owner = self._owner(pid)
        with self._lock:
            self._forgive()
            self._debts[owner] = self._debts.get(owner, 0.0) + seconds
            if self._debts[owner] > MOST:
                self._refused.add(owner)

    def _forgive(self) -> None:
        now = self._clock()
        regained, self._at = (now - self._at) * REGAINED, now
        self._debts = {
            owner: debt - regained for owner, debt in self._debts.items() if debt > regained
        }
        self._refused &= self._debts.keys()
