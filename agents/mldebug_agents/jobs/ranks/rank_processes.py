"""Tells which processes are ranks, and which only inherited the environment of one. Pure functions.

Every child of a rank inherits RANK, so an environment proves nothing: the process tree decides. A
*claimant* is a process that claims a rank and has no ancestor with the same claim.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from mldebug_agents.jobs.launcher import RankClaim
from mldebug_agents.jobs.ranks.registry import ProcessInfo
from mldebug_agents.system.procfs import Stat

"""Such a claim is not inherited: it was made for this very process."""

MOST_ABOVE = 128  # ancestors of a process, the nearest; a chain of thousands is nobody's job, and each of its links has as many


class ProcessTree:
    """The process tree at one moment. `stats`: what /proc/PID/stat says, by pid."""

    def __init__(self, stats: Mapping[int, Stat]) -> None:
        self.stats = stats
        self.children: dict[int, list[int]] = defaultdict(list)
        self._above: dict[int, tuple[int, ...]] = {}  # by pid of the parent: it and those above it
        for pid, stat in stats.items():
            self.children[stat.ppid].append(pid)

    def ancestors(self, pid: int) -> Sequence[int]:
        """The pids of parent, grandparent and so on, at most up to process 1, and at most `MOST_ABOVE`."""
        if pid not in self.stats:
            return ()
        parent = self.stats[pid].ppid  # thousands may have the same
        if parent not in self._above:
            self._above[parent] = tuple(islice(self._climb(pid), MOST_ABOVE))
        return self._above[parent]

    def _climb(self, pid: int) -> Iterator[int]:
        visited = {pid}
        while pid in self.stats and (pid := self.stats[pid].ppid) not in visited and pid:
            visited.add(pid)
            yield pid

    def descendants(self, pid: int, without: Collection[int] = ()) -> Iterator[int]:
        """The pids of all descendants of a process, breadth first; those in `without` are left out with their own descendants."""
        generation = [pid]
        while generation:
            below = [child for parent in generation for child in self.children.get(parent, ())]
            generation = [child for child in below if child not in without]
            yield from generation

    def lives(self, pid: int) -> bool:
        """Whether the process exists and is no zombie."""
        return pid in self.stats and self.stats[pid].state not in "ZX"


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """A process that claims a rank. `launcher`: the pid of its nearest ancestor that is a known launcher."""

    process: ProcessInfo
    claim: RankClaim
    launcher: int | None = None

    @property
    def pid(self) -> int:
        """The id of the process that claims to be the rank."""
        return self.process.stat.pid

    @property
    def age(self) -> tuple[int, int]:
        """Start time (clock ticks since boot) and pid: a sort key, the oldest first."""
        return self.process.stat.start_ticks, self.pid


def find_claimants(processes: Mapping[int, ProcessInfo], tree: ProcessTree) -> list[Claimant]:
    """All processes that claim a rank, without those that only inherited their claim; the oldest first."""
    claims = {pid: p.claim for pid, p in processes.items() if p.claims and p.claim}
    launchers = {pid for pid, process in processes.items() if process.launcher}
    tops = {pid for pid in claims if not _inherited(pid, claims, launchers, tree)}
    inside = _trainers(tops, claims, processes, tree)
    tops = {below[0] if len(below := inside.get(pid, ())) == 1 else pid for pid in tops}
    above = {ancestor for pid in tops for ancestor in tree.ancestors(pid)}
    tops = {pid for pid in tops if pid not in above or not _may_wrap(pid, claims, processes)}
    claimants = [
        Claimant(
            process=processes[pid],
            claim=claims[pid],
            launcher=next((a for a in tree.ancestors(pid) if a in launchers), None),
        )
        for pid in tops
    ]
    return sorted(claimants, key=lambda claimant: claimant.age)


def _place(claim: RankClaim) -> tuple[object, ...]:
    return claim.launcher, claim.rank, claim.world_size, claim.run_id, claim.attempt, claim.master


def _inherited(
    pid: int, claims: Mapping[int, RankClaim], launchers: Collection[int], tree: ProcessTree
) -> bool:
    mine = claims[pid]
    above = [ancestor for ancestor in tree.ancestors(pid) if ancestor in claims]
    if mine.launcher == "single":
        return bool(above) or any(a in launchers for a in tree.ancestors(pid))
    return any(_place(claims[ancestor]) == _place(mine) for ancestor in above)


def _trainers(
    tops: Collection[int],
    claims: Mapping[int, RankClaim],
    processes: Mapping[int, ProcessInfo],
    tree: ProcessTree,
) -> Mapping[int, Sequence[int]]:
    """The processes that train below each claimant that is a Python wrapper around them (a debugger, a retry loop).

    Looked for from below: each has few ancestors, while thousands in a chain have thousands of descendants each.
    """
    wrappers = {pid for pid in tops if not processes[pid].torch}
    found: dict[int, list[int]] = defaultdict(list)
    for pid, claim in claims.items() if wrappers else ():
        process = processes[pid]
        if not process.torch or process.forked or process.helper:
            continue
        for ancestor in tree.ancestors(pid):
            if ancestor in wrappers and _place(claims[ancestor]) == _place(claim):
                found[ancestor].append(pid)
    return found


def _may_wrap(
    top: int, claims: Mapping[int, RankClaim], processes: Mapping[int, ProcessInfo]
) -> bool:
    """Where others below it claim ranks: is it a Python program that starts them, and has a claim of its own by accident (a pod's RANK)?"""
    return not processes[top].torch or claims[top].launcher == "single"
