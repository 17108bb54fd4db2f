"""Which processes read a pipe, and which sockets of this host are connected to each other, for a search for log files.

A pipe has no path: only the descriptors of its readers name it, and reading those of all processes
is slow. slurmstepd hands the output of its tasks to `srun` over a TCP socket; /proc/PID/net/tcp and
tcp6 list both ends of such a connection.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile

from mldebug.core.model import ProcessState
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.proc_files import some_names
from mldebug_agents.system.procfs import Stat

MAX_SCANNED = 4096  # processes whose descriptors are looked at in one look
RECENT = 5.0  # seconds; the watch has just read all processes: who reads a pipe has been there for longer
_MAX_ANCESTORS = 12
_MAX_SIBLINGS = 64
FORGOTTEN_AFTER = 60.0  # seconds after which everybody is searched again for the reader of a pipe
_MAX_UNREAD = 1024
LONG = 0.25  # seconds of searches (see `Effort`), after which a pause is made
PAUSE = 20.0  # times as long is waited until the next searches of that owner
MOST_SECONDS = 1.0  # in which the pipes of one owner's ranks are searched for in one look
_MAPPED = "0000000000000000FFFF0000"  # what an IPv4 address begins with in tcp6
MAX_LINES = 200_000


Owner = tuple[int, str]
MayGoOn = Callable[[], bool]


class Effort:
    """Seconds of work since it was made: processor time of this process, so that a crowded node makes no search a long one, but at
    least a quarter of the time that went by.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock, self._used = clock, used
        self._began, self._used_before = clock(), used()

    @property
    def seconds(self) -> float:
        """So many until now."""
        passed = self._clock() - self._began
        return min(passed, max(self._used() - self._used_before, passed / 4))


class UnreadPipes:
    """Pipes for which no reader was found, kept between looks: the reader of a container's pipe is often outside of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._next: dict[Owner, float] = {}

    def may_search(self, owner: Owner) -> bool:
        """Whether readers of pipes of this owner's ranks may be searched for: long searches take a twentieth of the time."""
        return self._clock() >= self._next.get(owner, float("-inf"))

    def note_search(self, owner: Owner, seconds: float) -> None:
        """Note how long the searches of one look for this owner's pipes have taken so far."""
        if seconds < LONG:
            return
        if len(self._next) >= _MAX_UNREAD:
            self._next.clear()
        self._next[owner] = self._clock() + PAUSE * seconds

    def __contains__(self, pipe: str) -> bool:
        return self._clock() - self._since.get(pipe, float("-inf")) < FORGOTTEN_AFTER

    def add(self, pipe: str) -> None:
        """Note that no process was found that reads this pipe. It is forgotten after `FORGOTTEN_AFTER` seconds."""
        if len(self._since) >= _MAX_UNREAD:
            self._since.clear()
        self._since[pipe] = self._clock()


class _PipeIndex:
    """Who reads each pipe; `whole`: all processes were looked at."""

    def __init__(self) -> None:
        self.pipes: dict[str, list[int]] = {}
        self.whole = False


class PipeReaders:
    """Finds the processes that read from a pipe.

    It caches what it reads from /proc, so make a new one for each look.
    """

    def __init__(
        self,
        host: Host,
        unread: UnreadPipes | None = None,
        effort: Callable[[], Effort] = Effort,
    ) -> None:
        self._host = host
        self._unread = unread or UnreadPipes()
        self._effort = effort
        self._left: dict[Owner, float] = {}  # seconds for searching in this look, by owner
        self._briefs: dict[int, Stat] | None = None
        self._states: dict[int, ProcessState | None] = {}
        self._readers: dict[str, tuple[int, ...]] = {}
        self._indices: dict[int, _PipeIndex] = {}  # by the user for whose ranks it was made

    def state(self, pid: int) -> ProcessState | None:
        """The state of a process with its open files; None where it is gone."""
        if pid not in self._states:
            self._states[pid] = self._host.process_state(pid, threads=False, files=True)
        return self._states[pid]

    def named(self, name: str, uid: int | None, rank: ProcessState) -> list[ProcessState]:
        """Processes whose name begins with `name`, of the user `uid` (None: of any user), that are wanted for this rank."""
        with self._search(rank) as may_go_on:
            all_of_node = takewhile(lambda _: may_go_on(), self._all().items())
            states = [self.state(pid) for pid, stat in all_of_node if stat.name.startswith(name)]
        return [state for state in states if state is not None and uid in (None, state.uid)]

    def readers_of(self, pipe: str, rank: ProcessState) -> tuple[int, ...]:
        """Pids of other processes that hold the reading end of a pipe: ancestors and siblings of
        the rank; any process only where none of these does.

        Empty, too, where the search for pipes of this owner's ranks has taken `MOST_SECONDS`: thousands of processes may have
        thousands of descriptors each.
        """
        if pipe not in self._readers:
            with self._search(rank) as may_go_on:
                self._readers[pipe] = tuple(self._look_for(pipe, rank, may_go_on))
        return tuple(pid for pid in self._readers[pipe] if pid != rank.pid)

    @contextmanager
    def _search(self, rank: ProcessState) -> Iterator[MayGoOn]:
        """A search for this rank; gives whether it may go on."""
        owner, effort = self._host.belongs_to(rank.pid), self._effort()
        if owner not in self._left:
            self._left[owner] = MOST_SECONDS if self._unread.may_search(owner) else 0.0
        left = self._left[owner]
        yield lambda: effort.seconds < left
        if left > 0:
            self._left[owner] = left - effort.seconds
            self._unread.note_search(owner, MOST_SECONDS - self._left[owner])

    def _look_for(self, pipe: str, rank: ProcessState, may_go_on: MayGoOn) -> list[int]:
        near = self._among(self._relatives(rank.pid), pipe, may_go_on)
        return near or self._strangers(pipe, rank.uid, may_go_on)

    def _among(self, pids: Iterable[int], pipe: str, may_go_on: MayGoOn) -> list[int]:
        in_time = takewhile(lambda _: may_go_on(), pids)
        return [pid for pid in in_time if self._reads(pid, pipe)]

    def _all(self) -> dict[int, Stat]:
        if self._briefs is None:
            self._briefs = self._host.recent_briefs(RECENT)
        return self._briefs

    def _reads(self, pid: int, pipe: str) -> bool:
        state = self.state(pid)
        files = state.files if state else ()
        return any(file.target == pipe and "r" in file.mode for file in files)

    def _relatives(self, pid: int) -> list[int]:
        """Its ancestors, and the other children of each: in `python train.py | tee log` both are the shell's."""
        briefs = self._all()
        chain: list[int] = []
        while (stat := briefs.get(pid)) and stat.ppid > 1 and len(chain) < _MAX_ANCESTORS:
            pid = stat.ppid
            chain.append(pid)
        siblings = [pid for pid, stat in briefs.items() if stat.ppid in chain[:3]]
        return list(dict.fromkeys((*chain, *siblings[:_MAX_SIBLINGS])))

    def _strangers(self, pipe: str, uid: int, may_go_on: MayGoOn) -> list[int]:
        if pipe in self._unread:
            return []
        index = self._index_for(uid, may_go_on)
        found = self._among(index.pipes.get(pipe, ()), pipe, may_go_on)
        if not found and index.whole:
            self._unread.add(pipe)
        return found

    def _index_for(self, uid: int, may_go_on: MayGoOn) -> _PipeIndex:
        """Who reads each pipe of the node; this user's processes and root's are looked at first, where the time is not enough for all."""
        index = self._indices.setdefault(uid, _PipeIndex())
        if index.whole or not may_go_on():
            return index
        pids = sorted(self._all(), key=lambda pid: self._host.belongs_to(pid)[0] not in (uid, 0))
        index = self._indices[uid] = _PipeIndex()
        for pid in pids[:MAX_SCANNED]:
            if not may_go_on():
                return index
            for target in self._host.at_once(pid, partial(self._pipes, pid)):
                index.pipes.setdefault(target, []).append(pid)
        index.whole = True
        return index

    def _pipes(self, pid: int) -> set[str]:
        """The pipes that it has open for reading: hundreds may hold the other end of a container's, and each would be read whole."""
        try:
            numbers = some_names(f"{self._host.proc}/{pid}/fd", MAX_SCANNED)
        except OSError:  # gone, or not for us
            return set()
        targets = {number: self._host.link(pid, f"fd/{number}") for number in numbers}
        return {
            target
            for number, target in targets.items()
            if target.startswith("pipe:[") and self._host.reads_from(pid, number)
        }


def connected_sockets(tables: Iterable[str]) -> dict[str, str]:
    """The other end of each connection, by the kernel's names: `socket:[12]` -> `socket:[13]`.

    Only where both ends are in these tables.
    """
    ends: dict[tuple[str, str], str] = {}
    for table in tables:
        for line in table.splitlines()[1:MAX_LINES]:
            words = line.split()
            if len(words) > 9 and words[9] != "0":
                ends[_address(words[1]), _address(words[2])] = f"socket:[{words[9]}]"
    return {
        inode: ends[remote, local]
        for (local, remote), inode in ends.items()
        if (remote, local) in ends
    }


def _address(text: str) -> str:
    return text.removeprefix(_MAPPED)
