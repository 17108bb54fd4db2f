"""Ranks that should be on this node and have no living process: which they are, since when, and what they left behind."""

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
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.details import exit_status
from mldebug_agents.system.procfs import Stat, exit_reason

YOUNG = 3.0  # seconds in which a launcher may still be starting the others

Children = Mapping[tuple[int, int], int]


class LostRankFinder:
    """Finds lost ranks at one moment. `claimed`: pids that hold a rank of any job."""

    def __init__(
        self, host: Host, registry: Registry, tree: ProcessTree, claimed: Collection[int]
    ) -> None:
        self._host = host
        self._registry = registry
        self._tree = tree
        self._seated = claimed

    def of(
        self, rank_group: RankGroup, remembered: Mapping[int, RankIdentity], children: Children
    ) -> tuple[tuple[LostRank, ...], list[Gap]]:
        """The lost ranks in order, and a gap for each rank that has a process which is no Python program yet.

        `remembered`: the process that last held each rank; `children`: (pid, start) of processes
        once seen below a rank.
        """
        dead = {
            rank: one
            for rank, one in remembered.items()
            if rank not in rank_group.claimants and not self.stranger(one)
        }
        unseen = expected_ranks(rank_group) - rank_group.claimants.keys() - dead.keys()
        parent = common_parent(rank_group, self._tree)
        zombies = match_zombies(unseen, _ages(rank_group), self._zombies(parent, dead, rank_group))
        orphans = {claimant.claim.rank for claimant in rank_group.leftovers}
        unproved = unseen - zombies.keys() - orphans
        gaps = self._not_yet(parent, unproved) if unproved else []
        if unproved and self._young(rank_group):
            unseen -= unproved
        unseen -= {gap.rank for gap in gaps if gap.rank is not None}
        lost = [
            self._lost(rank, rank_group, children, dead.get(rank), zombies.get(rank))
            for rank in sorted(unseen | dead.keys())
        ]
        return tuple(lost), gaps

    def stranger(self, rank: RankIdentity) -> bool:
        """Whether the process that held this rank still exists. For a rank that no process claims any more: then that
        process runs another program now.
        """
        stat = self._tree.stats.get(rank.pid)
        return stat is not None and stat.start_ticks == rank.start_ticks and stat.state not in "ZX"

    def _young(self, rank_group: RankGroup) -> bool:
        newest = max(
            claimant.process.stat.start_ticks for claimant in rank_group.claimants.values()
        )
        return self._host.clock() - self._host.started_at(newest) < YOUNG

    def _zombies(
        self, parent: int | None, dead: Mapping[int, RankIdentity], rank_group: RankGroup
    ) -> list[Stat]:
        """Zombie children of the launcher that may have been ranks, and are not known as one yet."""
        taken = {one.pid for one in dead.values()}
        below = self._tree.children.get(parent, []) if parent else []
        stats = (self._tree.stats[pid] for pid in below if pid not in taken)
        names = {claimant.process.stat.name for claimant in rank_group.claimants.values()}
        return [
            stat
            for stat in stats
            if stat.state in "ZX" and (stat.name in names or named_python(stat.name))
        ]

    def _not_yet(self, parent: int | None, ranks: Collection[int]) -> list[Gap]:
        """A launcher may have started a shell that becomes the rank later."""
        below = self._tree.descendants(parent, without=self._seated) if parent else ()
        living = [self._tree.stats[pid] for pid in below if self._tree.lives(pid)]
        gaps: dict[int, Gap] = {}
        for pid, claim in self._registry.claims_of(living).items():
            if claim.rank in ranks:
                name = clean(self._tree.stats[pid].name)
                reason = f"its process is {name} (pid {pid}), which is no Python program yet"
                gaps.setdefault(
                    claim.rank,
                    Gap(what=f"rank {claim.rank}", reason=reason, rank=claim.rank, pid=pid),
                )
        return list(gaps.values())

    def _lost(
        self,
        rank: int,
        rank_group: RankGroup,
        children: Children,
        identity: RankIdentity | None,
        zombie: Stat | None,
    ) -> LostRank:
        left = [
            claimant.process.stat
            for claimant in rank_group.leftovers
            if claimant.claim.rank == rank
        ]
        pid = identity.pid if identity else zombie.pid if zombie else self._group_leader(left)
        stat = self._tree.stats.get(pid) if pid else None
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
        return leaders.pop() if len(leaders) == 1 and not self._tree.lives(min(leaders)) else None

    def _orphans(self, pid: int | None, rank: int, children: Children) -> Iterable[int]:
        """What lives of its children: those seen earlier, and those in the session it led."""
        for (child, start), owner in children.items():
            stat = self._tree.stats.get(child)
            if owner == rank and stat and stat.start_ticks == start and self._tree.lives(child):
                yield child
        for stat in self._tree.stats.values() if pid else ():
            if stat.session == pid and stat.pid != pid and self._tree.lives(stat.pid):
                yield stat.pid


def _ages(rank_group: RankGroup) -> dict[int, tuple[int, int]]:
    return {rank: claimant.age for rank, claimant in rank_group.claimants.items()}
