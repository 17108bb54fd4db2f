"""Makes jobs of processes that claim a rank: which ranks are one run, which of its attempts, and
which ranks are missing. Pure functions.

A process whose rank has ended but that still claims it (an orphan) is a *leftover*; two processes
that claim one rank are *duplicates*.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from mldebug.cluster.run_identity import port_of
from mldebug_agents.jobs.launcher import MAX_LOCAL, RankClaim
from mldebug_agents.jobs.ranks.rank_processes import Claimant, ProcessTree
from mldebug_agents.jobs.ranks.ras_address import BY_RAS
from mldebug_agents.system.procfs import Stat

Key = tuple[object, ...]
MAX_LAUNCHES = 64  # of one run, among which the launch of other ranks is looked for
INITS = frozenset(
    ("systemd", "init", "tini", "docker-init", "podman-init", "dumb-init", "catatonit", "pause")
)  # process 1 where it starts no rank by itself


class RankGroup(msgspec.Struct, kw_only=True):
    """The ranks of one attempt (start) of one run on this node, collected before a job is made of them."""

    key: Key
    place: str = ""  # the pod or container of all its ranks
    claimants: dict[int, Claimant]
    duplicates: list[Claimant]
    leftovers: list[Claimant]
    launchers: list[int]
    rivals: bool = False  # another group claims the same ranks of the same run

    @property
    def first(self) -> Claimant:
        """The process that claims the lowest rank. It stands for all in what they should agree on."""
        return self.claimants[min(self.claimants)]


# --- who belongs together ------------------------------------------------------------------------


def find_rank_groups(
    claimants: Iterable[Claimant],
    tree: ProcessTree,
    known_children: Collection[tuple[int, int]] = (),
    *,
    join_containers: bool = False,
) -> list[RankGroup]:
    """Group processes that claim a rank into runs, then attempts, then launches. Leftovers and
    duplicates are kept apart.

    `known_children`: (pid, start) of processes that were once seen below a rank. `join_containers`:
    ranks of one run may be in several containers of this node; else those of each container are a
    run of their own, since anybody may use the same names.
    """
    runs: dict[tuple[Key, str], list[Claimant]] = defaultdict(list)
    for claimant in claimants:
        place = "" if join_containers else claimant.process.place
        runs[_run(claimant), place].append(claimant)
    return [
        msgspec.structs.replace(rank_group, place=place)
        for (key, place), members in runs.items()
        for rank_group in _rank_groups(key, members, tree, known_children)
        if any(s.process.torch or not s.claim.needs_torch for s in rank_group.claimants.values())
        or not rank_group.claimants
    ]


def _run(claimant: Claimant) -> Key:
    """What all ranks of one run on this node have in common, and no other run has."""
    claim, process = claimant.claim, claimant.process
    if claim.world_size == 1 and claimant.launcher is None:
        return ("alone", *process.key)
    master = "" if claim.supervised and claim.specific else claim.master  # restarts may move it
    here = process.network if claim.loopback or not claim.master else ""
    anchor: Key = ()
    if not claim.specific and not claim.master:
        anchor = (claimant.launcher or process.stat.ppid, process.namespace)
    return (claim.launcher, claim.run_id, master, process.uid, here, *anchor)


def _rank_groups(
    key: Key,
    members: list[Claimant],
    tree: ProcessTree,
    known_children: Collection[tuple[int, int]],
) -> Iterator[RankGroup]:
    launched = any(claimant.launcher is not None for claimant in members)
    facts = _run_facts(members)
    left = {
        claimant.pid
        for claimant in members
        if _left_behind(claimant, facts, tree, known_children)
        or (launched and claimant.launcher is None and not claimant.process.forked)
    }
    attempts: dict[Key, list[Claimant]] = defaultdict(list)
    for claimant in members:
        attempts[claimant.claim.attempt, claimant.claim.world_size].append(claimant)
    for attempt, claimants in attempts.items():
        kept = [claimant for claimant in claimants if claimant.pid not in left]
        leftovers = [claimant for claimant in claimants if claimant.pid in left]
        launches = _launches(kept) or [[]]
        ports = [_ports(launch) for launch in launches]
        for number, (launch, port) in enumerate(zip(launches, ports, strict=True)):
            rank_group = _rank_group((*key, *attempt, *port, ports[:number].count(port)), launch)
            rank_group.leftovers = leftovers if number == 0 else []
            rank_group.rivals = ports.count(port) > 1
            yield rank_group


class _RunFacts(NamedTuple):
    """What is asked of all claimants of a run for each of them: counted once, since there may be thousands."""

    ranks: Counter[int]  # how many claim each rank
    started: int  # how many are programs of their own, and no copies of their parents
    leaders: int  # how many lead a process group


def _run_facts(members: Collection[Claimant]) -> _RunFacts:
    return _RunFacts(
        ranks=Counter(claimant.claim.rank for claimant in members),
        started=sum(not claimant.process.forked for claimant in members),
        leaders=sum(claimant.process.stat.pgrp == claimant.pid for claimant in members),
    )


def _left_behind(
    claimant: Claimant,
    run: _RunFacts,
    tree: ProcessTree,
    known_children: Collection[tuple[int, int]],
) -> bool:
    """Did it inherit its claim from a rank that is gone?"""
    process = claimant.process
    if claimant.claim.launcher == BY_RAS:
        return False
    if process.helper or process.key in known_children or _adopted(claimant, tree):
        return True
    if process.forked:  # environments are given at exec: it is a copy of whoever had this one
        shared = run.ranks[claimant.claim.rank] > 1
        return claimant.claim.supervised or shared or run.started > 0
    group = process.stat.pgrp
    if group == claimant.pid or tree.lives(group):
        return False
    return run.leaders > 0


def _adopted(claimant: Claimant, tree: ProcessTree) -> bool:
    """A program without PyTorch whose parent is gone: a helper that outlived its rank, or a rank that will load it."""
    process = claimant.process
    if claimant.launcher is not None or process.torch or process.stat.ppid != 1:
        return False
    return not _is_of_first(process.stat, tree)


def _is_of_first(stat: Stat, tree: ProcessTree) -> bool:
    """Whether process 1 may have started this child itself: it is a container's own script, in whose process group the child is."""
    first = tree.stats.get(1)
    groups = first and (first.pgrp, first.session)
    return first is not None and first.name not in INITS and groups == (stat.pgrp, stat.session)


def _launches(claimants: list[Claimant]) -> list[list[Claimant]]:
    """Split by launcher where two launchers have the same rank, or ports of masters; else all is one job, two nodes on
    one host included.
    """
    by_launcher: dict[int | None, list[Claimant]] = defaultdict(list)
    for claimant in claimants:
        by_launcher[claimant.launcher].append(claimant)
    launches: list[tuple[set[int], tuple[str, ...], list[Claimant]]] = []
    for group in by_launcher.values():
        ranks, ports = {claimant.claim.rank for claimant in group}, _ports(group)
        room = (
            one for one in launches[:MAX_LAUNCHES] if one[1] == ports and ranks.isdisjoint(one[0])
        )
        home = next(room, None)
        if home is None:
            launches.append((ranks, ports, group))
        else:
            home[0].update(ranks)
            home[2].extend(group)
    return [launch for _, _, launch in launches]


def _ports(claimants: list[Claimant]) -> tuple[str, ...]:
    return tuple(sorted({port_of(claimant.claim.master) for claimant in claimants}))


def _rank_group(key: Key, claimants: list[Claimant]) -> RankGroup:
    chosen: dict[int, Claimant] = {}
    duplicates: list[Claimant] = []
    for claimant in sorted(claimants, key=lambda one: one.age):
        if chosen.setdefault(claimant.claim.rank, claimant) is not claimant:
            duplicates.append(claimant)
    launchers = sorted(
        {claimant.launcher for claimant in claimants if claimant.launcher is not None}
    )
    return RankGroup(
        key=key, claimants=chosen, duplicates=duplicates, leftovers=[], launchers=launchers
    )


def common_parent(rank_group: RankGroup, tree: ProcessTree) -> int | None:
    """The pid of the group's launcher, else of the nearest common ancestor of most of its ranks (a
    shell script); None without one.
    """
    if rank_group.launchers:
        return rank_group.launchers[0]
    if len(rank_group.claimants) < 2:
        return None
    counts: Counter[int] = Counter()
    for claimant in rank_group.claimants.values():
        counts.update(pid for pid in tree.ancestors(claimant.pid) if pid > 1)
    nearest = max(counts.values(), default=0)
    # the deepest of those that most have in common is listed first, by the first rank's own ancestry
    return next((pid for pid, count in counts.items() if count == nearest > 1), None)


# --- who is lost ---------------------------------------------------------------------------------


def expected_ranks(rank_group: RankGroup) -> set[int]:
    """The ranks that must be on this node, as far as the claims show. Where in doubt a rank is left out."""
    everyone = rank_group.first.claim
    world = everyone.world_size
    alone = everyone.launcher == "environment" and everyone.loopback
    sizes = {claimant.claim.local_world_size for claimant in rank_group.claimants.values()}
    if world <= MAX_LOCAL and (alone or sizes == {world}):
        return set(range(world))
    launches: dict[int | None, list[RankClaim]] = defaultdict(list)
    for claimant in rank_group.claimants.values():
        launches[claimant.launcher].append(claimant.claim)
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
    """Which zombie process each lost rank has become; empty where that is not certain.

    It is where there are as many zombies as lost ranks, and all ranks, lost and living, were
    started in their order (a single pair needs no order). `living`: (start, pid) by rank.
    """
    by_age = sorted(zombies, key=lambda stat: (stat.start_ticks, stat.pid))
    pairs = dict(zip(sorted(lost), by_age, strict=False))
    if not by_age or len(by_age) != len(lost):
        return {}
    order = {**living, **{rank: (stat.start_ticks, stat.pid) for rank, stat in pairs.items()}}
    starts = [order[rank] for rank in sorted(order)]
    return pairs if len(by_age) == 1 or starts == sorted(starts) else {}
