"""Finds every training job on this node: its ranks, those that are lost, and the child processes of each rank."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Gap, Job, RankIdentity, Remark, shared_fields
from mldebug.core.redact import clean
from mldebug.jobs.owners import Owner
from mldebug_agents.jobs.launcher import Launcher
from mldebug_agents.jobs.ranks.grouping import Key, RankGroup, common_parent, find_rank_groups
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.jobs.ranks.lost_ranks import LostRankFinder
from mldebug_agents.jobs.ranks.node_waits import WaitingLaunchers
from mldebug_agents.jobs.ranks.oddities import (
    impossible_environments,
    oddities,
    split_worlds,
    unreadable,
)
from mldebug_agents.jobs.ranks.rank_processes import Claimant, ProcessTree, find_claimants
from mldebug_agents.jobs.ranks.ras_ranks import Ask, RasRanks
from mldebug_agents.jobs.ranks.registry import ProcessInfo, Registry, named_python
from mldebug_agents.jobs.ranks.unrelated import YOUNG, UnrelatedProcesses
from mldebug_agents.system.host import Host, Paths
from mldebug_agents.system.procfs import TICKS

MAX_RUNS = 128  # of one owner: a node has as many cores
MAX_RANKS = 1024  # of all runs of one owner
MAX_REMARKS = 200  # of one look

_GENERATED = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}")  # a run id that says nothing


RunPlace = tuple[Key, str]
"""A run, and the pod or container that it runs in."""


class RankChild(msgspec.Struct, frozen=True, kw_only=True):
    """A process below a rank in the process tree that is not a rank itself."""

    pid: int
    kind: str = "child"  # worker: a DataLoader worker, as far as can be told; child: anything else
    name: str = ""
    python: bool = False


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on this node at one moment: jobs, remarks about them, and what could not be read (`gaps`).

    `children` has an entry for every rank, by its pid.
    """

    jobs: tuple[Job, ...] = ()  # sorted by start; each has ranks
    waiting: tuple[Job, ...] = ()  # jobs whose launchers have started no rank here
    remarks: tuple[Remark, ...] = ()
    gaps: tuple[Gap, ...] = ()
    children: dict[int, tuple[RankChild, ...]] = {}
    programs: dict[int, Program] = {}  # by pid of the rank

    @property
    def all(self) -> tuple[Job, ...]:
        """The jobs with ranks, then those that wait for nodes."""
        return (*self.jobs, *self.waiting)


class _RankMemory(msgspec.Struct, kw_only=True):
    """What earlier looks found of a job that still runs."""

    id: str
    ranks: dict[int, RankIdentity] = {}
    children: dict[tuple[int, int], int] = {}  # (pid, start) -> the rank above it


class RankFinder:
    """Finds the jobs on this node.

    There is one per agent: it remembers which process held a rank, so that the pid of a rank that
    ends is still known.
    """

    def __init__(
        self,
        host: Host,
        reader: Paths,
        node: str,
        launchers: Sequence[Launcher],
        ask_ras: Ask = lambda _: None,
        probes: bool = False,
        join_containers: bool = False,
    ) -> None:
        """`ask_ras`: asks NCCL RAS which process is which rank, where their environment does not say.

        `probes`: report the ranks of our own probes as a job, too. `join_containers`: see `find_rank_groups`.
        """
        self._host = host
        self._ras = RasRanks(ask_ras, host.clock)
        self._node = node
        self._registry = Registry(host, reader, launchers, probes)
        self._memory: dict[RunPlace, _RankMemory] = {}
        self._join_containers = join_containers
        self._waiting = WaitingLaunchers(host, node)
        self._unrelated = UnrelatedProcesses()

    def find(self) -> Discovery:
        """Search all processes of this node once."""
        tree = ProcessTree(self._host.briefs(self._unrelated.unread()))
        processes = self._ras.complete(self._registry.look(tree.stats), tree)
        claimants = find_claimants(processes, tree)
        known_children = {child for memory in self._memory.values() for child in memory.children}
        rank_groups = find_rank_groups(
            claimants, tree, known_children, join_containers=self._join_containers
        )
        alive, too_many = self._watched([one for one in rank_groups if one.claimants])
        alive.sort(key=lambda one: one.first.age)  # of two that say the same, the older has the id
        before, self._memory = self._memory, {}
        for one in alive:
            self._memory[_place(one)] = self._recall(one, before, tree)
        children = dict(_children(alive, processes, tree))
        self._remember_children(alive, children, tree)
        claimed = {
            claimant.pid for rank_group in alive for claimant in rank_group.claimants.values()
        }
        self._note_unrelated(tree, processes, claimants)
        losses = LostRankFinder(self._host, self._registry, tree, claimed)
        jobs, gaps = [], list(unreadable(processes, self._host))
        for rank_group in alive:
            job, more = self._job(rank_group, losses)
            jobs.append(job)
            gaps += more
        odd = (
            *impossible_environments(processes, tree),
            *oddities(rank_groups),
            *split_worlds(alive),
        )
        remarks = (*too_many, *odd[:MAX_REMARKS])
        jobs.sort(key=lambda job: (job.started_at, job.id))
        return Discovery(
            jobs=tuple(jobs),
            waiting=self._waiting.find(processes, tree),
            remarks=remarks,
            gaps=tuple(gaps),
            children=children,
            programs={pid: processes[pid].program for pid in claimed if pid in processes},
        )

    def _note_unrelated(
        self,
        tree: ProcessTree,
        processes: Mapping[int, ProcessInfo],
        claimants: Sequence[Claimant],
    ) -> None:
        below = (pid for one in self._memory.values() for pid, _ in one.children)
        held = (one.pid for memory in self._memory.values() for one in memory.ranks.values())
        young = self._host.clock() - self._host.boot_time() - YOUNG
        related = (*(claimant.pid for claimant in claimants), *below, *held)
        self._unrelated.update(tree, processes, related, young * TICKS)

    def _watched(self, alive: list[RankGroup]) -> tuple[list[RankGroup], list[Remark]]:
        """At most `MAX_RUNS` with `MAX_RANKS` ranks of each owner: those that were watched before and those of PyTorch first,
        and a remark on the others.
        """
        by_owner: dict[Owner, list[RankGroup]] = defaultdict(list)
        for one in alive:
            by_owner[one.first.process.owner_key].append(one)
        remarks, kept = [], set()
        for (uid, _), mine in by_owner.items():
            mine.sort(
                key=lambda one: (
                    _place(one) not in self._memory,
                    not one.first.process.torch,
                    one.first.age,
                )
            )
            some = list(_few_enough(mine))
            kept |= set(map(id, some))
            if more := len(mine) - len(some):
                who = self._host.user(uid)
                message = f"{more:,} more runs of user {who} are not watched: {MAX_RUNS} with {MAX_RANKS} ranks in all are, which is the most for one user"
                remarks.append(Remark(kind="too_many_runs", message=message))
        return [one for one in alive if id(one) in kept], remarks

    def _recall(
        self, rank_group: RankGroup, before: Mapping[RunPlace, _RankMemory], tree: ProcessTree
    ) -> _RankMemory:
        memory = before.get(_place(rank_group))
        if memory is None:
            taken = {one.id for one in (*before.values(), *self._memory.values())}
            job_id = _job_id(self._node, rank_group.key, rank_group, tree)
            if job_id in taken:  # another container says the same
                job_id = _job_id(self._node, _place(rank_group), rank_group, tree)
            memory = _RankMemory(id=job_id)
        launcher = common_parent(rank_group, tree)
        for rank, claimant in rank_group.claimants.items():
            memory.ranks[rank] = self._identity(claimant, launcher)
        return memory

    def _remember_children(
        self,
        rank_groups: list[RankGroup],
        children: Mapping[int, tuple[RankChild, ...]],
        tree: ProcessTree,
    ) -> None:
        for rank_group in rank_groups:
            memory = self._memory[_place(rank_group)]
            memory.children = {key: rank for key, rank in memory.children.items() if _is(key, tree)}
            for rank, claimant in rank_group.claimants.items():
                for child in children.get(claimant.pid, ()):
                    memory.children[child.pid, tree.stats[child.pid].start_ticks] = rank

    def _job(self, rank_group: RankGroup, losses: LostRankFinder) -> tuple[Job, list[Gap]]:
        memory = self._memory[_place(rank_group)]
        lost, gaps = losses.of(rank_group, memory.ranks, memory.children)
        gone_astray = {
            rank
            for rank, one in memory.ranks.items()
            if rank not in rank_group.claimants and losses.stranger(one)
        }
        memory.ranks = {r: one for r, one in memory.ranks.items() if r not in gone_astray}
        ranks = tuple(memory.ranks[rank] for rank in sorted(rank_group.claimants))
        first = ranks[0]
        job = Job(
            id=memory.id,
            name=_job_name(first),
            launcher=first.launcher,
            attempt=first.attempt,
            world_size=first.world_size,
            launcher_pid=first.launcher_pid,
            uid=first.uid,
            user=first.user,
            started_at=min(rank.started_at for rank in memory.ranks.values()),
            nodes=(self._node,),
            node_list=rank_group.first.claim.node_list,
            ranks=ranks,
            lost=lost,
        )
        return job, gaps

    def _identity(self, claimant: Claimant, launcher: int | None) -> RankIdentity:
        process, claim = claimant.process, claimant.claim
        inside = None if process.namespace_pid == claimant.pid else process.namespace_pid
        return RankIdentity(
            **shared_fields(claim, RankIdentity),
            **shared_fields(process, RankIdentity) | {"namespace_pid": inside},
            pid=claimant.pid,
            start_ticks=process.stat.start_ticks,
            started_at=self._host.started_at(process.stat.start_ticks),
            node=self._node,
            user=self._host.user(process.uid),
            launcher_pid=claimant.launcher or launcher,
        )


def _few_enough(groups: list[RankGroup]) -> Iterator[RankGroup]:
    """The first of one owner's runs, as many as are watched; one with too many ranks is passed over."""
    ranks = runs = 0
    for one in groups:
        if runs < MAX_RUNS and ranks + len(one.claimants) <= MAX_RANKS:
            runs += 1
            ranks += len(one.claimants)
            yield one


# --- names ---------------------------------------------------------------------------------------


def _place(rank_group: RankGroup) -> RunPlace:
    return rank_group.key, rank_group.place


def _job_id(node: str, key: Key, rank_group: RankGroup, tree: ProcessTree) -> str:
    """Eight digits, the same at every look: the launcher's start outlives that of any rank."""
    oldest = min(claimant.process.stat.start_ticks for claimant in rank_group.claimants.values())
    launcher = tree.stats[rank_group.launchers[0]].start_ticks if rank_group.launchers else oldest
    text = repr((node, key, launcher))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def _job_name(rank: RankIdentity) -> str:
    """The script, and the run id where a person chose it."""
    script = rank.script or "python"
    generic = rank.run_id.lower() in ("", "none", "default", "static", "0")
    return script if generic or _GENERATED.fullmatch(rank.run_id) else f"{script} {rank.run_id}"


# --- children ------------------------------------------------------------------------------------


def _children(
    rank_groups: list[RankGroup], processes: Mapping[int, ProcessInfo], tree: ProcessTree
) -> Iterator[tuple[int, tuple[RankChild, ...]]]:
    ranks = {
        claimant.pid for rank_group in rank_groups for claimant in rank_group.claimants.values()
    }
    for pid in sorted(ranks):
        below = tree.descendants(pid, without=ranks)
        yield pid, tuple(_child(pid, child, processes, tree) for child in below)


def _child(
    rank: int, pid: int, processes: Mapping[int, ProcessInfo], tree: ProcessTree
) -> RankChild:
    stat, process = tree.stats[pid], processes.get(pid)
    python = process.python if process else named_python(stat.name)
    worker = stat.name == "pt_data_worker" or (
        process is not None
        and (process.forked or process.spawned)
        and (stat.ppid == rank or _is_fork_server(processes.get(stat.ppid)))
    )
    return RankChild(
        pid=pid, kind="worker" if worker else "child", name=clean(stat.name), python=python
    )


def _is_fork_server(process: ProcessInfo | None) -> bool:
    return process is not None and process.helper and not process.spawned


def _is(key: tuple[int, int], tree: ProcessTree) -> bool:
    return key[0] in tree.stats and tree.stats[key[0]].start_ticks == key[1]
