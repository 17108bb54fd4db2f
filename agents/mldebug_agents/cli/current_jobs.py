"""Whether the jobs that the agent's last search has found are those that are here now, by one list of all processes: then nobody need search again."""

import os
import time
from collections.abc import Iterator, Mapping

from mldebug.status.snapshot import FoundJobs
from mldebug_agents.system.procfs import KERNEL_THREAD, TICKS, Stat

OLDEST = 90.0  # seconds since the search; the longest `stall.interval` is 60
SLACK = 1.0  # seconds before it began, in which a process may have begun that it did not see
NO_JOBS = frozenset(
    [
        "sh",
        "bash",
        "dash",
        "zsh",
        "sleep",
        "sshd",
        "sudo",
        "su",
        "less",
        "more",
        "grep",
        "head",
        "tail",
        "cat",
        "tee",
        "sed",
        "awk",
        "cut",
        "sort",
        "uniq",
        "wc",
        "jq",
        "watch",
        "timeout",
        "ps",
        "top",
        "htop",
        "ls",
        "find",
        "cron",
        "py-spy",
        "nvidia-smi",
    ]
)
"""Programs beside which there are always some, and which are no rank and no launcher."""


def are_current(
    found: FoundJobs, agent: int, processes: Mapping[int, Stat], now: float, uptime: float
) -> bool:
    """Whether all processes of the jobs are there still, and none has begun since that may belong to one. `agent`: its pid; `now`: unix time,
    and `uptime` seconds since boot, both of this moment.
    """
    age = now - found.at
    if not 0 <= age <= OLDEST or not all(_are_here(found, processes)):
        return False
    known = {rank.pid for job in found.jobs for rank in job.ranks}
    since = (uptime - age - SLACK) * TICKS
    ours = {os.getpid(), *_above(os.getpid(), processes)}
    young = (one for one in processes.values() if one.start_ticks >= since and one.pid not in known)
    return all(_is_no_job(one, agent, ours, processes) for one in young)


def moment() -> tuple[float, float]:
    """Unix time, and seconds since boot."""
    return time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)


def _are_here(found: FoundJobs, processes: Mapping[int, Stat]) -> Iterator[bool]:
    for job in found.jobs:
        yield job.launcher_pid is None or job.launcher_pid in processes
        for rank in job.ranks:
            one = processes.get(rank.pid)
            yield one is not None and one.start_ticks == rank.start_ticks


def _is_no_job(one: Stat, agent: int, ours: set[int], processes: Mapping[int, Stat]) -> bool:
    """Whether a young process is none of a job's: it is a kernel thread or over, a usual tool, above us, or the agent's."""
    if one.flags & KERNEL_THREAD or one.state == "Z" or one.name in NO_JOBS or one.pid in ours:
        return True
    return agent in _above(one.pid, processes)


def _above(pid: int, processes: Mapping[int, Stat]) -> tuple[int, ...]:
    """The parent of a process, its parent, and so on."""
    found: list[int] = []
    while (one := processes.get(pid)) is not None and one.ppid and one.ppid not in found:
        pid = one.ppid
        found.append(pid)
    return tuple(found)
