"""Ranks that should be on this node and have no living process: which, since when dead, and what they left behind."""

from collections.abc import Collection, Iterable, Mapping

from mldebug.core.model import Gap, LostRank, RankIdentity
from mldebug.core.redact import clean
from mldebug_agents.jobs.ranks.grouping import (
    RankGroup,
    common_parent,
    expected_ranks,
    match_zombies,
)
from mldebug_agents.jobs.ranks.rank_processes import ProcessTree
from mldebug_agents.jobs.ranks.registry import Registry, named_python
from mldebug_agents.system.host import Host, exit_status
from mldebug_agents.system.procfs import Stat, exit_reason

YOUNG = 3.0  # seconds in which a launcher may still be starting the others

Children = Mapping[tuple[int, int], int]


class LostRankFinder:
    """One look at one moment; `seated` are the pids that hold a rank of any job."""

    def __init__(
        self, host: Host, registry: Registry, family: ProcessTree, seated: Collection[int]
    ) -> None:
        self._host = host
        self._registry = registry
        self._family = family
        self._seated = seated

    def of(
        self, team: RankGroup, remembered: Mapping[int, RankIdentity], children: Children
    ) -> tuple[tuple[LostRank, ...], list[Gap]]:
        """Return the lost ranks in order, and a gap for each rank that has a process, but no Python yet.

        `remembered`: who held each rank at any look; `children`: (pid, start) of processes once seen below a rank.
        """
        dead = {
            rank: one
            for rank, one in remembered.items()
            if rank not in team.seats and not self.stranger(one)
        }
        unseen = expected_ranks(team) - team.seats.keys() - dead.keys()
        parent = common_parent(team, self._family)
        zombies = match_zombies(unseen, _ages(team), self._zombies(parent, dead, team))
        orphans = {seat.claim.rank for seat in team.leftovers}
        unproved = unseen - zombies.keys() - orphans
        gaps = self._not_yet(parent, unproved) if unproved else []
        if unproved and self._young(team):
            unseen -= unproved
        unseen -= {gap.rank for gap in gaps if gap.rank is not None}
        lost = [
            self._lost(rank, team, children, dead.get(rank), zombies.get(rank))
            for rank in sorted(unseen | dead.keys())
        ]
        return tuple(lost), gaps

    def stranger(self, one: RankIdentity) -> bool:
        """Does the process live on, as something that is no rank any more?"""
        stat = self._family.stats.get(one.pid)
        return stat is not None and stat.start_ticks == one.start_ticks and stat.state not in "ZX"

    def _young(self, team: RankGroup) -> bool:
        newest = max(seat.process.stat.start_ticks for seat in team.seats.values())
        return self._host.clock() - self._host.started_at(newest) < YOUNG

    def _zombies(
        self, parent: int | None, dead: Mapping[int, RankIdentity], team: RankGroup
    ) -> list[Stat]:
        """Zombie children of the launcher that may have been ranks, and are not known as one yet."""
        taken = {one.pid for one in dead.values()}
        below = self._family.children.get(parent, []) if parent else []
        stats = (self._family.stats[pid] for pid in below if pid not in taken)
        names = {seat.process.stat.name for seat in team.seats.values()}
        return [
            stat
            for stat in stats
            if stat.state in "ZX" and (stat.name in names or named_python(stat.name))
        ]

    def _not_yet(self, parent: int | None, ranks: Collection[int]) -> list[Gap]:
        """A launcher may have started a shell that becomes the rank later."""
        below = self._family.descendants(parent, without=self._seated) if parent else ()
        living = [pid for pid in below if self._family.lives(pid)]
        gaps: dict[int, Gap] = {}
        for pid, claim in self._registry.claims_of(living).items():
            if claim.rank in ranks:
                name = clean(self._family.stats[pid].name)
                reason = f"its process is {name} (pid {pid}), which is no Python program yet"
                gaps.setdefault(
                    claim.rank,
                    Gap(what=f"rank {claim.rank}", reason=reason, rank=claim.rank, pid=pid),
                )
        return list(gaps.values())

    def _lost(
        self,
        rank: int,
        team: RankGroup,
        children: Children,
        identity: RankIdentity | None,
        zombie: Stat | None,
    ) -> LostRank:
        left = [seat.process.stat for seat in team.leftovers if seat.claim.rank == rank]
        pid = identity.pid if identity else zombie.pid if zombie else self._group_leader(left)
        stat = self._family.stats.get(pid) if pid else None
        status = exit_status(stat, self._host.status(stat.pid).uid) if stat else None
        pids = {stat.pid for stat in left} | set(self._orphans(pid, rank, children))
        return LostRank(
            rank=rank,
            pid=pid,
            exit_status=status,
            reason=exit_reason(status),
            leftovers=tuple(sorted(pids)),
        )

    def _group_leader(self, orphans: list[Stat]) -> int | None:
        """Launchers start each rank as the leader of its own session: its orphans still carry that number."""
        leaders = {stat.session for stat in orphans if stat.session == stat.pgrp != stat.pid}
        return leaders.pop() if len(leaders) == 1 and not self._family.lives(min(leaders)) else None

    def _orphans(self, pid: int | None, rank: int, children: Children) -> Iterable[int]:
        """What lives of its children: those seen earlier, and those in the session it led."""
        for (child, start), owner in children.items():
            stat = self._family.stats.get(child)
            if owner == rank and stat and stat.start_ticks == start and self._family.lives(child):
                yield child
        for stat in self._family.stats.values() if pid else ():
            if stat.session == pid and stat.pid != pid and self._family.lives(stat.pid):
                yield stat.pid


def _ages(team: RankGroup) -> dict[int, tuple[int, int]]:
    return {rank: seat.age for rank, seat in team.seats.items()}
