"""Remarks and gaps besides jobs: impossible environments, ranks that are claimed twice, orphans,
processes that may not be read.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from mldebug.core.model import Gap, Remark
from mldebug_agents.jobs.ranks.grouping import Key, RankGroup
from mldebug_agents.jobs.ranks.rank_processes import ProcessTree
from mldebug_agents.jobs.ranks.registry import ProcessInfo
from mldebug_agents.system.host import Host

MAX_PIDS = 32  # named in one remark
MAX_GAPS = 16  # processes that did not answer, each with a gap of its own


def impossible_environments(
    processes: Mapping[int, ProcessInfo], tree: ProcessTree
) -> Iterator[Remark]:
    """A remark for each process whose environment cannot be true. Children that inherited it get none."""
    liars: dict[str, list[int]] = defaultdict(list)
    for pid, process in sorted(processes.items()):
        problem = process.problem
        if not problem:
            continue
        above = (processes[a].problem for a in tree.ancestors(pid) if a in processes)
        if problem not in above:
            liars[problem].append(pid)
    for problem, pids in liars.items():
        many = f"{len(pids)} processes are" if len(pids) > 1 else f"process {pids[0]} is"
        yield Remark(
            kind="impossible_environment",
            message=f"{problem}: {many} not counted as a rank",
            pids=tuple(pids[:MAX_PIDS]),
        )


def oddities(rank_groups: Iterable[RankGroup]) -> Iterator[Remark]:
    """Remarks about ranks that two processes claim, node lists that cannot be used, and processes whose job is gone."""
    for rank_group in rank_groups:
        if rank_group.claimants and (ignored := rank_group.first.claim.ignored):
            yield Remark(
                kind="impossible_environment", message=ignored, pids=(rank_group.first.pid,)
            )
        for claimant in rank_group.duplicates:
            kept = rank_group.claimants[claimant.claim.rank]
            yield Remark(
                kind="duplicate_rank",
                message=f"rank {claimant.claim.rank} is claimed by process {kept.pid}, which is older and was kept, "
                f"and by process {claimant.pid}",
                pids=(kept.pid, claimant.pid),
            )
        if rank_group.rivals and rank_group.first.claim.master:
            yield Remark(
                kind="duplicate_rank",
                message=f"two launches claim the same ranks of the world at {rank_group.first.claim.master}; "
                "they are shown as two jobs",
                pids=tuple(sorted(claimant.pid for claimant in rank_group.claimants.values()))[
                    :MAX_PIDS
                ],
            )
        if rank_group.leftovers and not rank_group.claimants:
            yield _outlived(rank_group)


def split_worlds(rank_groups: Iterable[RankGroup]) -> Iterator[Remark]:
    """A remark on each world whose ranks are in several containers of one owner, each of which has others of them: they are shown as
    jobs of their own, since anybody may use the same names.
    """
    worlds: dict[Key, list[RankGroup]] = defaultdict(list)
    for one in rank_groups:
        if one.claimants:
            worlds[one.key].append(one)
    for parts in worlds.values():
        ranks = [rank for part in parts for rank in part.claimants]
        if len(parts) > 1 and len(ranks) == len(set(ranks)):
            yield Remark(
                kind="split_world",
                message=f"ranks of one world are in {len(parts)} containers or process namespaces, and shown as as many jobs; "
                "where all belong to one owner, agent: {join_containers: true} makes them one",
                pids=tuple(sorted(part.first.pid for part in parts))[:MAX_PIDS],
            )


def _outlived(rank_group: RankGroup) -> Remark:
    pids = tuple(sorted(claimant.pid for claimant in rank_group.leftovers))[:MAX_PIDS]
    words = "process" if len(pids) == 1 else "processes"
    numbers = ", ".join(map(str, pids[:5]))
    return Remark(
        kind="leftover",
        message=f"{words} {numbers} outlived the ranks that started them (attempt "
        f"{rank_group.leftovers[0].claim.attempt})",
        pids=pids,
    )


def unreadable(processes: Mapping[int, ProcessInfo], host: Host) -> Iterator[Gap]:
    """An entry of what is missing for each user whose Python processes may not be read, and for each process whose environment
    could not be read in time (together beyond `MAX_GAPS`).
    """
    closed: dict[int, list[ProcessInfo]] = defaultdict(list)
    silent = 0
    for process in processes.values():
        silent += process.stuck
        if process.stuck and silent > MAX_GAPS:
            continue
        if process.stuck:
            yield Gap(
                what=f"identity of process {process.stat.pid}",
                reason=f"its environment could not be read: {process.refusal}",
                pid=process.stat.pid,
            )
        elif process.refusal and not process.launcher:
            closed[process.uid].append(process)
    if silent > MAX_GAPS:
        more = f"{silent - MAX_GAPS} more processes"
        yield Gap(what=f"identity of {more}", reason=f"{more} could not be read either")
    for uid, hidden in sorted(closed.items()):
        user, count = host.user(uid), len(hidden)
        what = f"{count} Python process{'es' if count > 1 else ''} of user {user}"
        yield Gap(
            what=what,
            reason=f"{what} cannot be read: {hidden[0].refusal}",
            way_out=f"run mldebug as root{'' if not uid else f' or as {user}'}",
        )
