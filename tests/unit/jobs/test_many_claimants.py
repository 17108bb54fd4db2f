"""Thousands of processes that claim ranks, in the shapes that made discovery compare each with each other: grouping them takes CPU time in proportion."""

import time
from collections.abc import Iterator

import pytest

from mldebug_agents.jobs.launcher import RankClaim
from mldebug_agents.jobs.ranks.grouping import RankGroup, find_rank_groups
from mldebug_agents.jobs.ranks.rank_processes import ProcessTree, find_claimants
from mldebug_agents.jobs.ranks.registry import ProcessInfo
from mldebug_agents.system.procfs import FORKED, Stat

FEW, MANY = 30, 3000
SECONDS = 0.6  # of CPU time; the worst took 3.1
FIRST = 10  # pid


def claimed(pid: int, above: int, rank: int, **more: object) -> ProcessInfo:
    """A Python process that claims a rank of one large run."""
    facts: dict[str, object] = {"torch": True, "group": pid, "flags": 0} | more
    claim = RankClaim(launcher="torchrun", priority=90, rank=rank, world_size=100_000, local_rank=rank, run_id="run", master="node:1")  # fmt: skip
    stat = Stat(pid=pid, name="python3", ppid=above, pgrp=int(str(facts["group"])), start_ticks=pid, flags=int(str(facts["flags"])))  # fmt: skip
    return ProcessInfo(stat=stat, python=True, claim=claim, uid=1000, torch=bool(facts["torch"]))


def launcher(pid: int) -> ProcessInfo:
    return ProcessInfo(
        stat=Stat(pid=pid, name="torchrun", ppid=1, pgrp=pid, start_ticks=pid), launcher=True
    )


def own_launchers(number: int) -> Iterator[ProcessInfo]:
    for one in range(number):
        pid = FIRST + 2 * one
        yield from (launcher(pid), claimed(pid + 1, pid, one))


def left_behind(number: int) -> Iterator[ProcessInfo]:
    yield from own_launchers(number)
    yield from (claimed(FIRST + 2 * number + one, 1, one) for one in range(number))


def copies(number: int) -> Iterator[ProcessInfo]:
    return (claimed(FIRST + one, 1, one, flags=FORKED) for one in range(number))


def dead_groups(number: int) -> Iterator[ProcessInfo]:
    return (claimed(FIRST + one, 1, one, group=5) for one in range(number))


def chain(number: int) -> Iterator[ProcessInfo]:
    return (claimed(FIRST + one, FIRST + one - 1, one, torch=False) for one in range(number))


def found(processes: Iterator[ProcessInfo]) -> list[RankGroup]:
    known = {process.stat.pid: process for process in processes}
    tree = ProcessTree({pid: process.stat for pid, process in known.items()})
    return find_rank_groups(find_claimants(known, tree), tree)


@pytest.mark.parametrize("shape", [own_launchers, left_behind, copies, dead_groups, chain])
def test_a_hundred_times_as_many_take_little(shape) -> None:  # type: ignore[no-untyped-def]
    begun = time.process_time()
    found(shape(MANY))
    assert time.process_time() - begun < SECONDS


def test_who_belongs_together_stays_the_same() -> None:
    """A control: the ranks of each shape, as they were found before."""
    ranks = {shape: [sorted(one.claimants) for one in found(shape(FEW))] for shape in (own_launchers, left_behind, copies, dead_groups)}  # fmt: skip
    everyone = [list(range(FEW))]
    assert ranks == dict.fromkeys(ranks, everyone)
    (left,) = found(left_behind(FEW))
    assert [one.pid for one in left.leftovers] == [FIRST + 2 * FEW + one for one in range(FEW)]


def test_copies_beside_a_program_of_its_own_are_left_behind() -> None:
    """A control: a copy of a rank has its environment from the rank, and two copies of one claim the same."""
    (one,) = found(iter((*copies(2), claimed(50, 1, 2))))
    assert (sorted(one.claimants), len(one.leftovers)) == ([2], 2)
    (two,) = found(iter((claimed(20, 1, 0, flags=FORKED), claimed(21, 1, 0, flags=FORKED), claimed(22, 1, 1, flags=FORKED))))  # fmt: skip
    assert (sorted(two.claimants), len(two.leftovers)) == ([1], 2)


def test_a_wrapper_gives_way_to_the_one_that_trains_below_it() -> None:
    """A control: of two that train below it neither is meant, and it stays itself."""
    wrapper = claimed(10, 1, 0, torch=False)
    (one,) = found(iter((wrapper, claimed(11, 10, 0))))
    assert [claimant.pid for claimant in one.claimants.values()] == [11]
    (two,) = found(iter((wrapper, claimed(11, 10, 1), claimed(12, 10, 2))))
    assert sorted(claimant.pid for claimant in two.claimants.values()) == [11, 12]
