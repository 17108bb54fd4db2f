"""Children that cannot be ended: named by pid and start time, so that they are known even after the pid was reused."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mldebug_agents.system.procfs import Stat, parse_stat

PROC = Path("/proc")


class Leftover(msgspec.Struct, frozen=True):
    """A process that could not be ended. `start_ticks`: clock ticks since boot, as in /proc/PID/stat."""

    pid: int
    start_ticks: int
    words: str = ""  # what it is, for people

    def lives(self, proc: Path = PROC) -> bool:
        """Whether this very process still exists; False for a zombie."""
        stat = _stat(self.pid, proc)
        return stat is not None and stat.start_ticks == self.start_ticks


def children_of(parent: int, proc: Path = PROC) -> tuple[Leftover, ...]:
    """All living children of a process, from the kernel's list or, where it has none, from all processes."""
    found = []
    for pid in _pids_of(parent, proc):
        stat = _stat(pid, proc)
        if stat is not None and stat.ppid == parent:
            found.append(Leftover(pid, stat.start_ticks, stat.name))
    return tuple(found)


def survivors(children: Sequence[Leftover], seconds: float) -> list[Leftover]:
    """The children that still live after waiting at most `seconds` for all of them to end."""
    deadline = time.monotonic() + seconds
    while (left := [one for one in children if one.lives()]) and time.monotonic() < deadline:
        time.sleep(0.002)
    return left


def _pids_of(parent: int, proc: Path) -> list[int]:
    with contextlib.suppress(OSError):  # a kernel without this list: all processes are asked
        pids = (proc / f"{parent}/task/{parent}/children").read_text()
        return [int(word) for word in pids.split()]
    return [int(entry.name) for entry in proc.glob("[0-9]*")]


def _stat(pid: int, proc: Path) -> Stat | None:
    """None once it is gone or a zombie."""
    with contextlib.suppress(OSError):
        stat = parse_stat((proc / f"{pid}/stat").read_text(errors="replace"))
        return stat if stat is not None and stat.state not in "ZX" else None
    return None
