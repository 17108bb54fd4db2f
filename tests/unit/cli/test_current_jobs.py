"""When the jobs that the agent has found are those that are here, and what `mldebug status` does where they are not."""

import os
from collections.abc import Mapping

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.status.snapshot import FoundJobs
from mldebug_agents.cli.current_jobs import OLDEST, are_current
from mldebug_agents.system.procfs import KERNEL_THREAD, TICKS, Stat

NOW, UPTIME = 1_795_240_000.0, 5000.0
AGENT, ME = 40, os.getpid()
RANKS = tuple(RankIdentity(rank=n, world_size=2, pid=100 + n, start_ticks=7) for n in range(2))
JOB = Job(id="1a2b3c", name="t.py", launcher="torchrun", world_size=2, launcher_pid=99, ranks=RANKS)
FOUND = FoundJobs(at=NOW - 4, jobs=(JOB,))
OLD = int((UPTIME - 60) * TICKS)
YOUNG = int((UPTIME - 2) * TICKS)


def process(pid: int, *, ppid: int = 1, start: int = OLD, **changes: object) -> Stat:
    return msgspec.structs.replace(Stat(pid=pid, name="python3", ppid=ppid, start_ticks=start, state="S"), **changes)  # fmt: skip


HERE = {
    1: process(1, ppid=0),
    AGENT: process(AGENT),
    99: process(99),
    **{rank.pid: process(rank.pid, start=7) for rank in RANKS},
    50: process(50),  # the shell
    ME: process(ME, ppid=50, start=YOUNG),
}


def current(*more: Stat, found: FoundJobs = FOUND, without: int = 0) -> bool:
    processes: Mapping[int, Stat] = HERE | {one.pid: one for one in more}
    return are_current(found, AGENT, {pid: one for pid, one in processes.items() if pid != without}, NOW, UPTIME)  # fmt: skip


def test_jobs_whose_processes_are_all_here_are_current() -> None:
    assert current()
    assert current(found=FoundJobs(at=NOW - 4)), "there is none, and nothing has begun"


@pytest.mark.parametrize("without", [99, 101])
def test_a_rank_or_launcher_that_is_gone_wants_a_search(without: int) -> None:
    assert not current(without=without)


def test_another_process_with_the_pid_of_a_rank_wants_a_search() -> None:
    assert not current(process(101, start=8))


@pytest.mark.parametrize(
    ("young", "enough"),
    [
        (process(200, start=YOUNG), False),
        (process(200, start=YOUNG, name="torchrun"), False),
        (process(200, start=int((UPTIME - 4.5) * TICKS)), False),
        (process(200, start=OLD), True),
        (process(200, start=YOUNG, state="Z"), True),
        (process(200, start=YOUNG, flags=KERNEL_THREAD), True),
        (process(200, start=YOUNG, name="less"), True),
        (process(200, start=YOUNG, ppid=AGENT), True),
        (process(50, start=YOUNG), True),
        (process(100, start=7), True),
    ],
    ids=["a program", "a launcher", "as the search began", "old", "over", "of the kernel", "a tool", "the agent's", "our shell", "a rank"],
)  # fmt: skip
def test_a_process_that_has_begun_since_wants_a_search_unless_it_is_no_job(young: Stat, enough: bool) -> None:  # fmt: skip
    assert current(young) == enough


@pytest.mark.parametrize("age", [OLDEST + 1, -1.0])
def test_what_an_agent_found_long_ago_or_tomorrow_wants_a_search(age: float) -> None:
    assert not current(found=msgspec.structs.replace(FOUND, at=NOW - age))
