"""From seats to jobs: which ranks are one run, which of its attempts, and which ranks are missing. Pure.

A seat whose rank died (an orphan) is a *leftover*; two seats of one rank are *duplicates*.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from mldebug.cluster.run_identity import port_of
from mldebug_agents.jobs.launcher import MAX_LOCAL, RankClaim
from mldebug_agents.jobs.ranks.rank_processes import BY_RAS, Claimant, ProcessTree
from mldebug_agents.system.procfs import Stat

Key = tuple[object, ...]


class RankGroup(msgspec.Struct, kw_only=True):
    """One attempt of one run on this node: a job, before it is written down."""

    key: Key
    seats: dict[int, Claimant]
    duplicates: list[Claimant]
    leftovers: list[Claimant]
    launchers: list[int]
    rivals: bool = False  # another team claims the same ranks of the same run

    @property
    def first(self) -> Claimant:
        """The seat of the lowest rank: speaks for all where they should agree."""
        return self.seats[min(self.seats)]


# --- who belongs together ------------------------------------------------------------------------


def find_rank_groups(
    seats: Iterable[Claimant], family: ProcessTree, known_children: Collection[tuple[int, int]] = ()
) -> list[RankGroup]:
    """Group seats into runs, then attempts, then launches; leftovers and duplicates are told apart on the way.

    `known_children`: (pid, start) of processes that were once seen below a rank.
    """
    runs: dict[Key, list[Claimant]] = defaultdict(list)
    for seat in seats:
        runs[_run(seat)].append(seat)
    return [
        team
        for key, members in runs.items()
        for team in _teams(key, members, family, known_children)
        if any(s.process.torch or not s.claim.needs_torch for s in team.seats.values())
        or not team.seats
    ]


def _run(seat: Claimant) -> Key:
    """What all ranks of one run on this node have in common, and no other run has."""
    claim, process = seat.claim, seat.process
    if claim.world_size == 1 and seat.launcher is None:
        return ("alone", *process.key)
    master = "" if claim.supervised and claim.specific else claim.master  # restarts may move it
    here = process.network if claim.loopback or not claim.master else ""
    anchor: Key = ()
    if not claim.specific and not claim.master:
        anchor = (seat.launcher or process.stat.ppid, process.namespace)
    return (claim.launcher, claim.run_id, master, process.uid, here, *anchor)


def _teams(
    key: Key,
    members: list[Claimant],
    family: ProcessTree,
    known_children: Collection[tuple[int, int]],
) -> Iterator[RankGroup]:
    launched = any(seat.launcher is not None for seat in members)
    left = [
        seat
        for seat in members
        if _left_behind(seat, members, family, known_children)
        or (launched and seat.launcher is None and not seat.process.forked)
    ]
    attempts: dict[Key, list[Claimant]] = defaultdict(list)
    for seat in members:
        attempts[seat.claim.attempt, seat.claim.world_size].append(seat)
    for attempt, seats in attempts.items():
        kept = [seat for seat in seats if seat not in left]
        leftovers = [seat for seat in seats if seat in left]
        launches = _launches(kept) or [[]]
        ports = [_ports(launch) for launch in launches]
        for number, (launch, port) in enumerate(zip(launches, ports, strict=True)):
            team = _team((*key, *attempt, *port, ports[:number].count(port)), launch)
            team.leftovers = leftovers if number == 0 else []
            team.rivals = ports.count(port) > 1
            yield team


def _left_behind(
    seat: Claimant,
    members: list[Claimant],
    family: ProcessTree,
    known_children: Collection[tuple[int, int]],
) -> bool:
    """Did it inherit its claim from a rank that is gone?"""
    process = seat.process  # of many ranks: the others are gone through only where it matters
    if seat.claim.launcher == BY_RAS:
        return False
    if process.helper or process.key in known_children or _adopted(seat):
        return True
    if process.forked:  # environments are given at exec: it is a copy of whoever had this one
        rank = seat.claim.rank
        return seat.claim.supervised or any(
            other.claim.rank == rank or not other.process.forked
            for other in members
            if other is not seat
        )
    group = process.stat.pgrp
    if group == seat.pid or family.lives(group):
        return False
    return any(other.process.stat.pgrp == other.pid for other in members if other is not seat)


def _adopted(seat: Claimant) -> bool:
    """A program without PyTorch whose parent is gone: a helper that outlived its rank, or a rank that will load it."""
    process = seat.process
    return seat.launcher is None and not process.torch and process.stat.ppid == 1


def _launches(seats: list[Claimant]) -> list[list[Claimant]]:
    """Split by launcher where two launchers have the same rank, or ports of masters; else all is one job, two nodes on
    one host included.
    """
    by_launcher: dict[int | None, list[Claimant]] = defaultdict(list)
    for seat in seats:
        by_launcher[seat.launcher].append(seat)
    launches: list[list[Claimant]] = []
    for group in by_launcher.values():
        ranks = {seat.claim.rank for seat in group}
        room = (
            one
            for one in launches
            if ranks.isdisjoint(seat.claim.rank for seat in one) and _ports(one) == _ports(group)
        )
        home = next(room, None)
        if home is None:
            launches.append(group)
        else:
            home.extend(group)
    return launches


def _ports(seats: list[Claimant]) -> tuple[str, ...]:
    return tuple(sorted({port_of(seat.claim.master) for seat in seats}))


def _team(key: Key, seats: list[Claimant]) -> RankGroup:
    chosen: dict[int, Claimant] = {}
    duplicates: list[Claimant] = []
    for seat in sorted(seats, key=lambda one: one.age):
        if chosen.setdefault(seat.claim.rank, seat) is not seat:
            duplicates.append(seat)
    launchers = sorted({seat.launcher for seat in seats if seat.launcher is not None})
    return RankGroup(
        key=key, seats=chosen, duplicates=duplicates, leftovers=[], launchers=launchers
    )


def common_parent(team: RankGroup, family: ProcessTree) -> int | None:
    """The launcher, or else the nearest process that most ranks of this team come from (a shell script)."""
    if team.launchers:
        return team.launchers[0]
    if len(team.seats) < 2:
        return None
    counts: Counter[int] = Counter()
    for seat in team.seats.values():
        counts.update(pid for pid in family.ancestors(seat.pid) if pid > 1)
    nearest = max(counts.values(), default=0)
    # the deepest of those that most have in common is listed first, by the first rank's own ancestry
    return next((pid for pid, count in counts.items() if count == nearest > 1), None)


# --- who is lost ---------------------------------------------------------------------------------


def expected_ranks(team: RankGroup) -> set[int]:
    """The ranks that must be on this node, as far as the claims tell; too few rather than too many."""
    everyone = team.first.claim
    world = everyone.world_size
    alone = everyone.launcher == "environment" and everyone.loopback
    sizes = {seat.claim.local_world_size for seat in team.seats.values()}
    if world <= MAX_LOCAL and (alone or sizes == {world}):
        return set(range(world))
    launches: dict[int | None, list[RankClaim]] = defaultdict(list)
    for seat in team.seats.values():
        launches[seat.launcher].append(seat.claim)
    return {rank for claims in launches.values() for rank in _block(claims, world)}


def _block(claims: list[RankClaim], world: int) -> range:
    """The ranks of one node; empty where ranks are dealt out to the nodes in turn, or we cannot know."""
    firsts = {claim.rank - claim.local_rank for claim in claims if claim.local_rank is not None}
    sizes = {claim.local_world_size for claim in claims}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    if len(firsts) != 1 or size is None or not (len(claims) > 1 or claims[0].supervised):
        return range(0)
    first = firsts.pop()
    return range(first, first + size) if 0 <= first <= world - size else range(0)


def match_zombies(
    lost: Collection[int], living: Mapping[int, tuple[int, int]], zombies: Iterable[Stat]
) -> dict[int, Stat]:
    """Lost rank -> its zombie, where that is certain: as many of one as of the other, in the order of their starts.

    `living`: rank -> (start, pid). A single pair needs no order.
    """
    by_age = sorted(zombies, key=lambda stat: (stat.start_ticks, stat.pid))
    pairs = dict(zip(sorted(lost), by_age, strict=False))
    if not by_age or len(by_age) != len(lost):
        return {}
    order = {**living, **{rank: (stat.start_ticks, stat.pid) for rank, stat in pairs.items()}}
    starts = [order[rank] for rank in sorted(order)]
    return pairs if len(by_age) == 1 or starts == sorted(starts) else {}
