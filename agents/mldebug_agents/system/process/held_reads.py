"""Reads of another process's /proc in threads that can be left behind, because some of its files may never answer.

With `stat`, `io`, `syscall`, `fd/N`, `ns/NAME` and others the kernel waits until the process has its new program (it holds
`exec_update_lock`), for root too, and which of them do so differs from kernel to kernel. How long that takes is for the
process to say: an exec closes files, and one that lies on a mount that does not answer is never closed. Any user can
make such a mount, in an own user namespace. Such a read ends with that process, or with the agent, and nothing else interrupts it.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Generic, TypeVar

from mldebug_agents.system.process.containers import container_of, names_above, outer_namespace

PAUSE = 0.05  # seconds between two looks whether the thread sleeps in the kernel
LOOKS = 4  # in a row at which it does, after which it is left behind
HASTY = 0.02  # seconds, after which it is, where the same owner has let us wait before
FORGIVEN = 600.0  # seconds after which that is forgotten
MOST_OF_ONE = 8  # reads of one owner that hang: his other processes wait until one returns
STACK = 256 << 10  # bytes

T = TypeVar("T")
Owner = tuple[int, str]


class _Reads(Generic[T]):
    """Reads to be done one after the other by a thread of their own, and what has come of them.

    Bare locks, not events: a hundred times a look a thread waits for another, and an event costs it twice the CPU time.
    """

    def __init__(self, pids: Iterable[int], read: Callable[[int], T]) -> None:
        self.found: dict[int, T] = {}
        self.now = 0  # the pid that is read
        self.thread = 0  # its number in the kernel
        self.left_behind = False
        self.error: BaseException | None = None
        self.done = False
        self._undone = threading.Lock()
        self._undone.acquire()
        self._pids, self._read = tuple(pids), read

    def leave(self) -> None:
        """Have it end with the read that hangs, if that ever returns."""
        self.left_behind = True

    def do(self) -> None:
        """Read one after the other, until all are read or nobody waits any more."""
        self.thread = threading.get_native_id()
        try:
            for pid in self._pids:
                self.now = pid
                value = self._read(pid)
                if self.left_behind:
                    return
                self.found[pid] = value
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            self.error = error
        finally:
            self.done = True
            self._undone.release()

    def wait(self, seconds: float) -> bool:
        """Wait so long for the end, once it has begun; whether all is done. For one thread, which asks until it is True."""
        return self._undone.acquire(timeout=seconds)


class _Hand:
    """A thread that carries out one thing after the other."""

    def __init__(self) -> None:
        self._wanted = threading.Lock()  # free while there is work that nobody has begun
        self._wanted.acquire()
        self._work: _Reads[Any] | None = None
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=self._loop, name="mldebug-proc", daemon=True).start()
        finally:
            threading.stack_size(before)

    def start(self, work: _Reads[Any]) -> None:
        """Have it carry this out; it has nothing else to do."""
        self._work = work
        self._wanted.release()

    def _loop(self) -> None:
        _HANDS.add(threading.get_ident())
        while True:
            self._wanted.acquire()
            work, self._work = self._work, None
            if work is not None:
                work.do()


_HANDS: set[int] = set()
"""The threads of this module: what they read may ask for more, and that is read at once."""


class HeldReads:
    """Reads of /proc/PID, each of which is given up where the process holds it up. Any thread may call."""

    def __init__(
        self,
        proc: str = "/proc",
        sleeps: Callable[[int], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sleeps`: whether the thread of this number sleeps in the kernel and nothing but an end of the process can wake it."""
        self._proc, self._sleeps, self._clock = proc, sleeps or _sleeps, clock
        self._lock = threading.Lock()
        self._free: list[_Hand] = []
        self._held: dict[int, tuple[Owner, _Reads[Any], _Hand]] = {}
        self._slow: dict[Owner, float] = {}  # who has let us wait, and until when that counts

    @property
    def held(self) -> tuple[int, ...]:
        """The pids of processes at which a read hangs."""
        with self._lock:
            self._forgive()
            return tuple(self._held)

    def one(self, pid: int, read: Callable[[], T], instead: T) -> T:
        """What `read` returns, which reads of this process alone; `instead` where it hangs, or an earlier one still does."""
        return self.many((pid,), lambda _: read()).get(pid, instead)

    def many(self, pids: Iterable[int], read: Callable[[int], T]) -> dict[int, T]:
        """What `read` returns for each pid; those are left out at which it hangs, or an earlier one still does.

        An exception of `read` is raised.
        """
        if threading.get_ident() in _HANDS:
            return {pid: read(pid) for pid in pids}
        found: dict[int, T] = {}
        left = tuple(pids)
        while left := self._allowed(left):
            hand, work = self._hand(), _Reads(left, read)
            hand.start(work)
            whole = self._ends(work)
            found |= dict(work.found)
            if whole:
                with self._lock:
                    self._free.append(hand)
                if work.error is not None:
                    raise work.error
                return found
            self._hold(work, hand)
            left = left[left.index(work.now) + 1 :]
        return found

    def _hand(self) -> _Hand:
        with self._lock:
            if self._free:
                return self._free.pop()
        return _Hand()

    def _ends(self, work: _Reads[Any]) -> bool:
        """Wait until all is read; False where the thread sleeps in the kernel at one and the same process."""
        looks, at = 0, 0
        pause = HASTY
        while not work.wait(pause):
            pid = work.now
            asleep = bool(work.thread) and self._sleeps(work.thread)
            looks = looks + 1 if asleep and pid == at else int(asleep)
            at = pid
            if looks >= LOOKS or (looks > 1 and self._is_slow(self._owner(pid))):
                return work.done
            pause = HASTY if looks == 1 else PAUSE
        return True

    def _hold(self, work: _Reads[Any], hand: _Hand) -> None:
        work.leave()
        owner = self._owner(work.now)
        with self._lock:
            self._held[work.now] = owner, work, hand
            self._slow[owner] = self._clock() + FORGIVEN

    def _is_slow(self, owner: Owner) -> bool:
        with self._lock:
            return self._slow.get(owner, 0.0) > self._clock()

    def _allowed(self, pids: tuple[int, ...]) -> tuple[int, ...]:
        """Those of these that may be read now."""
        with self._lock:
            if not self._held:
                return pids
            self._forgive()
            held = set(self._held)
            counts = Counter(owner for owner, _, _ in self._held.values())
        full = {owner for owner, count in counts.items() if count >= MOST_OF_ONE}
        return tuple(
            pid for pid in pids if pid not in held and not (full and self._owner(pid) in full)
        )

    def _forgive(self) -> None:
        """Forget the reads that have returned after all."""
        for pid, (_, work, hand) in list(self._held.items()):
            if work.done:
                del self._held[pid]
                self._free.append(hand)

    def _owner(self, pid: int) -> Owner:
        return process_owner(f"{self._proc}/{pid}") or (-1, "")


def process_owner(folder: str) -> Owner | None:
    """Whose process this folder of /proc is of: its user, and the pod or container that it is in. None where it is gone.

    Asks only what a process cannot hold up.
    """
    try:
        uid = os.stat(folder).st_uid
        with open(f"{folder}/cgroup", encoding="utf-8", errors="replace", newline="\n") as file:
            cgroup = file.read(1 << 16)
    except OSError:
        return None
    within = container_of(cgroup, _above())
    return uid, within.pod or within.container or (
        "" if uid else outer_namespace(f"{folder}/ns/pid")
    )


@cache
def _above() -> frozenset[str]:
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        return names_above(file.read(1 << 16))


def _sleeps(thread: int) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[:1] == [b"D"]
    except OSError:  # the thread has ended
        return False
