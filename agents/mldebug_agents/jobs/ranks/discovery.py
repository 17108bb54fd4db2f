"""Discovery: every training job on this node, its ranks, those that are lost, and the children of each rank."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Gap, Job, RankIdentity, Remark
from mldebug.core.redact import clean
from mldebug_agents.jobs.launcher import Launcher
from mldebug_agents.jobs.ranks.grouping import Key, RankGroup, common_parent, find_rank_groups
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.jobs.ranks.lost_ranks import LostRankFinder
from mldebug_agents.jobs.ranks.oddities import impossible_environments, oddities, unreadable
from mldebug_agents.jobs.ranks.rank_processes import Claimant, ProcessTree, find_claimants
from mldebug_agents.jobs.ranks.ras_ranks import Ask, RasRanks
from mldebug_agents.jobs.ranks.registry import ProcessInfo, Registry, named_python
from mldebug_agents.system.host import Host, Paths

_GENERATED = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}")  # a run id that says nothing


class RankChild(msgspec.Struct, frozen=True, kw_only=True):
    """A descendant of a rank that is no rank."""

    pid: int
    kind: str = "child"  # worker: a DataLoader worker, as far as can be told; child: anything else
    name: str = ""
    python: bool = False


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """What is on this node now. `children` has an entry for every rank, by its pid."""

    jobs: tuple[Job, ...] = ()  # sorted by start
    remarks: tuple[Remark, ...] = ()
    gaps: tuple[Gap, ...] = ()
    children: dict[int, tuple[RankChild, ...]] = {}
    programs: dict[int, Program] = {}  # by pid of the rank


class _Memory(msgspec.Struct, kw_only=True):
    """What earlier looks saw of a job that still runs."""

    id: str
    ranks: dict[int, RankIdentity] = {}
    children: dict[tuple[int, int], int] = {}  # (pid, start) -> the rank above it


class RankFinder:
    """Finds jobs. Keep one: it remembers who held a rank, so one that dies is known by its pid."""

    def __init__(
        self,
        host: Host,
        reader: Paths,
        node: str,
        launchers: Sequence[Launcher],
        ask_ras: Ask = lambda _: None,
        probes: bool = False,
    ) -> None:
        """`ask_ras`: which of some processes, told as a job, is which rank, where their environment does not say.

        `probes`: the ranks of probes of ours are told as a job, too.
        """
        self._host = host
        self._ras = RasRanks(ask_ras, host.clock)
        self._node = node
        self._registry = Registry(host, reader, launchers, probes)
        self._memory: dict[Key, _Memory] = {}

    def find(self) -> Discovery:
        """Look once at all processes of this node."""
        family = ProcessTree(self._host.briefs())
        processes = self._ras.complete(self._registry.look(family.stats), family)
        seats = find_claimants(processes, family)
        known_children = {child for memory in self._memory.values() for child in memory.children}
        teams = find_rank_groups(seats, family, known_children)
        alive = [team for team in teams if team.seats]
        self._memory = {team.key: self._recall(team, family) for team in alive}
        children = dict(_children(alive, processes, family))
        self._remember_children(alive, children, family)
        seated = {seat.pid for team in alive for seat in team.seats.values()}
        losses = LostRankFinder(self._host, self._registry, family, seated)
        jobs, gaps = [], list(unreadable(processes, self._host))
        for team in alive:
            job, more = self._job(team, losses, family)
            jobs.append(job)
            gaps += more
        remarks = (*impossible_environments(processes, family), *oddities(teams))
        jobs.sort(key=lambda job: (job.started_at, job.id))
        return Discovery(
            jobs=tuple(jobs),
            remarks=remarks,
            gaps=tuple(gaps),
            children=children,
            programs={pid: processes[pid].program for pid in seated if pid in processes},
        )

    def _recall(self, team: RankGroup, family: ProcessTree) -> _Memory:
        memory = self._memory.get(team.key) or _Memory(id=_job_id(self._node, team, family))
        launcher = common_parent(team, family)
        for rank, seat in team.seats.items():
            memory.ranks[rank] = self._identity(seat, launcher)
        return memory

    def _remember_children(
        self,
        teams: list[RankGroup],
        children: Mapping[int, tuple[RankChild, ...]],
        family: ProcessTree,
    ) -> None:
        for team in teams:
            memory = self._memory[team.key]
            memory.children = {
                key: rank for key, rank in memory.children.items() if _is(key, family)
            }
            for rank, seat in team.seats.items():
                for child in children.get(seat.pid, ()):
                    memory.children[child.pid, family.stats[child.pid].start_ticks] = rank

    def _job(
        self, team: RankGroup, losses: LostRankFinder, family: ProcessTree
    ) -> tuple[Job, list[Gap]]:
        memory = self._memory[team.key]
        lost, gaps = losses.of(team, memory.ranks, memory.children)
        gone_astray = {
            rank
            for rank, one in memory.ranks.items()
            if rank not in team.seats and losses.stranger(one)
        }
        memory.ranks = {r: one for r, one in memory.ranks.items() if r not in gone_astray}
        ranks = tuple(memory.ranks[rank] for rank in sorted(team.seats))
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
            node_list=team.first.claim.node_list,
            ranks=ranks,
            lost=lost,
        )
        return job, gaps

    def _identity(self, seat: Claimant, launcher: int | None) -> RankIdentity:
        process, claim = seat.process, seat.claim
        inside = process.namespace_pid
        return RankIdentity(
            rank=claim.rank,
            world_size=claim.world_size,
            pid=seat.pid,
            start_ticks=process.stat.start_ticks,
            started_at=self._host.started_at(process.stat.start_ticks),
            node=self._node,
            local_rank=claim.local_rank,
            local_world_size=claim.local_world_size,
            uid=process.uid,
            user=self._host.user(process.uid),
            launcher=claim.launcher,
            launcher_pid=seat.launcher or launcher,
            run_id=claim.run_id,
            attempt=claim.attempt,
            master=claim.master,
            script=process.script,
            argv=process.argv,
            namespace_pid=inside if inside != seat.pid else None,
            container=process.container,
            nccl_ras=process.nccl_ras,
        )


# --- names ---------------------------------------------------------------------------------------


def _job_id(node: str, team: RankGroup, family: ProcessTree) -> str:
    """Eight digits, the same at every look: the launcher's start outlives that of any rank."""
    oldest = min(seat.process.stat.start_ticks for seat in team.seats.values())
    launcher = family.stats[team.launchers[0]].start_ticks if team.launchers else oldest
    text = repr((node, team.key, launcher))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def _job_name(rank: RankIdentity) -> str:
    """The script, and the run id where a person chose it."""
    script = rank.script or "python"
    generic = rank.run_id.lower() in ("", "none", "default", "static", "0")
    return script if generic or _GENERATED.fullmatch(rank.run_id) else f"{script} {rank.run_id}"


# --- children ------------------------------------------------------------------------------------


def _children(
    teams: list[RankGroup], processes: Mapping[int, ProcessInfo], family: ProcessTree
) -> Iterator[tuple[int, tuple[RankChild, ...]]]:
    ranks = {seat.pid for team in teams for seat in team.seats.values()}
    for pid in sorted(ranks):
        below = family.descendants(pid, without=ranks)
        yield pid, tuple(_child(pid, child, processes, family) for child in below)


def _child(
    rank: int, pid: int, processes: Mapping[int, ProcessInfo], family: ProcessTree
) -> RankChild:
    stat, process = family.stats[pid], processes.get(pid)
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


def _is(key: tuple[int, int], family: ProcessTree) -> bool:
    return key[0] in family.stats and family.stats[key[0]].start_ticks == key[1]
