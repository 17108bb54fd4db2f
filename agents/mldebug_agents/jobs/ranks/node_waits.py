"""Launchers that have started no rank: jobs that wait for nodes, from their first second on.

A launcher is taken to wait while no Python program runs below it. One whose ranks have ended waits from
then on: after a restart it waits for nodes again.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping

import msgspec

from mldebug.cluster.run_identity import is_specific
from mldebug.core.model import Job
from mldebug.jobs.owners import in_turns
from mldebug_agents.jobs.launcher import PendingLaunch
from mldebug_agents.jobs.ranks.rank_processes import ProcessTree
from mldebug_agents.jobs.ranks.registry import ProcessInfo
from mldebug_agents.system.host import Host

MAX_WAITING = 64  # jobs of one look, owners in turns: a node has as many cores

Key = tuple[object, ...]


class WaitingLaunchers:
    """Finds launchers without ranks. There is one per agent: it remembers when a launcher last had a rank."""

    def __init__(self, host: Host, node: str) -> None:
        self._host, self._node = host, node
        self._had_ranks: dict[tuple[int, int], float] = {}  # pid and start -> unix time

    def find(self, processes: Mapping[int, ProcessInfo], tree: ProcessTree) -> tuple[Job, ...]:
        """One job for each run whose launchers on this node have no rank, sorted by start; at most `MAX_WAITING`."""
        launchers = {pid: one for pid, one in processes.items() if _launches(one)}
        idle, now = defaultdict(list), self._host.clock()
        self._had_ranks = {
            one.key: self._had_ranks[one.key]
            for one in launchers.values()
            if one.key in self._had_ranks
        }
        for pid, one in launchers.items():
            if any(above in launchers for above in tree.ancestors(pid)):
                continue
            if _has_programs(pid, processes, tree):
                self._had_ranks[one.key] = now
            elif one.pending is not None:
                idle[_run(one, one.pending)].append(one)
        oldest = sorted(idle.values(), key=lambda mine: min(map(self._since, mine)))
        kept = in_turns(oldest, lambda mine: mine[0].owner_key)[:MAX_WAITING]
        return tuple(sorted(map(self._job, kept), key=lambda job: (job.started_at, job.id)))

    def _job(self, launchers: list[ProcessInfo]) -> Job:
        first = min(launchers, key=lambda one: (one.stat.start_ticks, one.stat.pid))
        pending = first.pending
        if pending is None:
            raise ValueError("a launcher without a pending launch waits for nothing")
        again = any(one.key in self._had_ranks for one in launchers)
        wait = msgspec.structs.replace(pending.wait, here=len(launchers), again=again)
        script = pending.script or pending.launcher
        text = repr((self._node, "waits", first.key))
        return Job(
            id=hashlib.sha256(text.encode()).hexdigest()[:8],
            name=f"{script} {wait.run_id}" if is_specific(wait.run_id) else script,
            launcher=pending.launcher,
            world_size=wait.nodes,
            launcher_pid=first.stat.pid,
            uid=first.uid,
            user=self._host.user(first.uid),
            started_at=max(self._since(one) for one in launchers),
            nodes=(self._node,),
            node_list=pending.node_list,
            waits=wait,
        )

    def _since(self, launcher: ProcessInfo) -> float:
        """Unix time of its start, or of the last look at which it still had a rank."""
        return self._had_ranks.get(launcher.key, self._host.started_at(launcher.stat.start_ticks))


def _launches(process: ProcessInfo) -> bool:
    return process.launcher and not process.forked and not process.helper


def _run(launcher: ProcessInfo, pending: PendingLaunch) -> Key:
    """What all launchers of one run have in common, and those of no other run."""
    wait = pending.wait
    whose = (pending.launcher, launcher.uid, launcher.place, launcher.network)
    return (*whose, wait.nodes, wait.run_id, wait.endpoint or launcher.key)


def _has_programs(pid: int, processes: Mapping[int, ProcessInfo], tree: ProcessTree) -> bool:
    """Whether a Python program runs below the launcher: a rank, or what may still become one."""
    return any(_is_program(processes.get(below)) for below in tree.descendants(pid))


def _is_program(process: ProcessInfo | None) -> bool:
    return process is not None and process.python and not (process.helper or process.launcher)
