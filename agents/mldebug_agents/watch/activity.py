"""Counters of a rank in seven cheap reads of /proc, whatever the number of its threads, and two more
reads for each of its children (three for one that runs).
"""

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from mldebug.core.model import Io
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import Stat

COMPILER = re.compile(
    r"(?:ptxas|cicc|nvcc|nvlink|fatbinary|cudafe\+\+|ninja|cc1\w*|lto1|collect2|as"
    r"|(?:clang|gcc|g|c|cc)(?:\+\+)?|ld|ld\.\w+|lld|triton)(?:-[\w.]+)?"
)  # fmt: skip
"""Names of programs, with a version or a target behind them: `gcc-12`, `ptxas-blackwell`."""

_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s*(\d{1,19})", re.MULTILINE)


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What /proc counts for one process and one of its threads, since the process started.

    Fields that this user may not read keep their defaults.
    """

    state: str = ""  # of the process
    wchan: str = ""
    thread_cpu_seconds: float = 0.0  # of the followed thread
    thread_delay_seconds: float = 0.0  # in which it was ready to run and no CPU was free
    cpu_seconds: float = 0.0  # all threads, those that ended included
    switches: int = 0  # voluntary ones of the followed thread
    io_bytes: int = 0
    written_bytes: int = 0
    thread_written_bytes: int = 0  # by the followed thread alone


def read_activity(host: Host, pid: int, start_ticks: int, tid: int) -> Activity | None:
    """Read the counters of a process and of its thread `tid`.

    The process is identified by pid and start time (clock ticks since boot); None where it is gone
    or another process has its pid.
    """
    return host.at_once(pid, lambda: _read(host, pid, start_ticks, tid))


def _read(host: Host, pid: int, start_ticks: int, tid: int) -> Activity | None:
    thread = procfs.parse_stat(host.text(pid, f"task/{tid}/stat"))
    switches = _SWITCHES.search(host.text(pid, f"task/{tid}/status"))
    io = procfs.parse_io(host.text(pid, "io"))
    of_thread = procfs.parse_io(host.text(pid, f"task/{tid}/io"))
    wchan = procfs.parse_wchan(host.text(pid, f"task/{tid}/wchan"))
    delay = procfs.parse_schedstat(host.text(pid, f"task/{tid}/schedstat"))
    everybody = host.brief(pid)  # read last: all of the above was of this process
    if everybody is None or everybody.start_ticks != start_ticks:
        return None
    return Activity(
        state=everybody.state,
        wchan=wchan,
        thread_cpu_seconds=thread.cpu_seconds if thread else 0.0,
        thread_delay_seconds=delay,
        cpu_seconds=everybody.cpu_seconds,
        switches=int(switches[1]) if switches else 0,
        io_bytes=_moved(io),
        written_bytes=io.written_chars if io else 0,
        thread_written_bytes=of_thread.written_chars if of_thread else 0,
    )


Key = tuple[int, int]  # pid and start of a process


class Work(msgspec.Struct, frozen=True):
    """How much one process, or several together, have done: CPU time (seconds) and I/O (bytes). `blocked`: it stands in the kernel
    in a wait that no signal ends; of several: one of them stood in it all the time, and did nothing. `delay_seconds` counts the main
    threads of those that were running or ready at both readings.
    """

    cpu_seconds: float = 0.0
    io_bytes: int = 0
    blocked: bool = False
    delay_seconds: float = 0.0  # ready to run with no CPU free; 0: not read, it sleeps


class ChildWork:
    """What the child processes of each rank have done between one reading and the next."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before: dict[int, dict[Key, Work]] = {}  # pid of the rank -> its children

    def work(self, rank: int, children: Iterable[int]) -> Work:
        """What the children of this rank did since the last call; zero at the first call.

        `rank`: its pid; `children`: their pids.
        """
        before, now = self._before.get(rank, {}), self._read(children)
        self._before[rank] = now
        return work_between(before, now)

    def keep(self, ranks: Collection[int]) -> None:
        """Forget the readings of all ranks whose pid is not among `ranks`."""
        self._before = {rank: work for rank, work in self._before.items() if rank in ranks}

    def _read(self, pids: Iterable[int]) -> dict[Key, Work]:
        found = (self._of_child(pid) for pid in pids)
        return {
            (stat.pid, stat.start_ticks): Work(stat.cpu_seconds, moved, stat.state == "D", delay)
            for stat, moved, delay in found
            if stat is not None
        }

    def _of_child(self, pid: int) -> tuple[Stat | None, int, float]:
        host = self._host
        return host.at_once(pid, lambda: _work_of(host, pid))


def work_between(before: Mapping[Key, Work], after: Mapping[Key, Work]) -> Work:
    """CPU time and bytes of the processes that exist in both readings; one that started in between is left out."""
    pairs = [(before[key], work) for key, work in after.items() if key in before]
    return Work(
        sum(new.cpu_seconds - old.cpu_seconds for old, new in pairs),
        sum(new.io_bytes - old.io_bytes for old, new in pairs),
        any(new.blocked and new == old for old, new in pairs),
        sum((_delay_between(old, new) for old, new in pairs), 0.0),
    )


def _delay_between(old: Work, new: Work) -> float:
    return new.delay_seconds - old.delay_seconds if old.delay_seconds and new.delay_seconds else 0.0


def rate(amount: float, span: float) -> float:
    """`amount` per second over `span` seconds; 0.0 where the amount is negative (a counter was reset) or no time has passed."""
    return max(0.0, amount) / span if span > 0 else 0.0


def _work_of(host: Host, pid: int) -> tuple[Stat | None, int, float]:
    stat = host.brief(pid)
    runs = stat is not None and stat.state == "R"
    delay = procfs.parse_schedstat(host.text(pid, f"task/{pid}/schedstat")) if runs else 0.0
    return stat, _io_bytes(host, pid), delay


def _io_bytes(host: Host, pid: int) -> int:
    return _moved(procfs.parse_io(host.text(pid, "io")))


def _moved(io: Io | None) -> int:
    """What it asked for and what reached a disk: only the latter grows inside one large copy call."""
    if io is None:
        return 0
    return io.read_chars + io.written_chars + io.read_bytes + io.written_bytes
