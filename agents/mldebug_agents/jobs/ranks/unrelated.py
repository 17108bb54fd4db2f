"""Which processes of a node have nothing to do with any job, and so need not be read at each look. Pure."""

from collections.abc import Collection, Iterable, Mapping

from mldebug_agents.jobs.ranks.rank_processes import ProcessTree
from mldebug_agents.jobs.ranks.registry import ProcessInfo

EVERY = 6  # looks
YOUNG = 60.0  # seconds of the life of a process in which it is read at each look: it may be just about to become a rank


class UnrelatedProcesses:
    """Remembers the processes that are neither a rank, a launcher nor a relative of one. There is one per agent.

    Such a process is read at every sixth look, in turns: where it becomes a rank without a new process (by `exec`, or as it
    imports PyTorch), it is found up to half a minute later. A new process is read at the first look.
    """

    def __init__(self) -> None:
        self._pids: frozenset[int] = frozenset()
        self._looks = 0

    def unread(self) -> frozenset[int]:
        """The pids of those that this look need not read. To be asked once in each look."""
        self._looks += 1
        return frozenset(pid for pid in self._pids if (pid + self._looks) % EVERY)

    def update(
        self,
        tree: ProcessTree,
        processes: Mapping[int, ProcessInfo],
        related: Iterable[int],
        oldest_young: float,
    ) -> None:
        """Note which are unrelated now.

        `related`: ranks, and what was below ranks once. `oldest_young`: the processes that started later (clock ticks since boot) are
        young.
        """
        heads = {pid for pid, process in processes.items() if _matters(process)} | set(related)
        above: set[int] = set()
        below: set[int] = set()  # with all that is below each of these
        for pid in heads & tree.stats.keys():
            above.update(tree.ancestors(pid))
            if pid not in below:
                below.update(tree.descendants(pid, below))
        near = heads | above | below
        self._pids = frozenset(_old(tree, near, oldest_young))


def _old(tree: ProcessTree, near: Collection[int], oldest_young: float) -> Iterable[int]:
    return (
        pid
        for pid, stat in tree.stats.items()
        if stat.start_ticks < oldest_young and pid not in near
    )


def _matters(process: ProcessInfo) -> bool:
    """Whether it is a launcher, claims a rank or may claim one that could not be read, or is named as what PyTorch has started."""
    claim = process.claim
    return (
        process.launcher
        or process.claims
        or process.stuck
        or bool(process.refusal)
        or process.torch
        or (claim is not None and not claim.needs_torch)
    )
