"""Ranks of processes whose environment names none (Ray, bare ssh, spawned by Python): NCCL RAS
knows which process is which rank.

It is asked for processes that look like a job of one process and have NCCL loaded: once for all of
one user, network and address, and a few times later where it could not tell yet, since NCCL
connects the ranks at their first collective. For the thread of the `RankFinder` only.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from mldebug.capture.nccl_ras.process_map import RasWorld
from mldebug.core.model import Job, RankIdentity
from mldebug_agents.jobs.launcher import RankClaim
from mldebug_agents.jobs.ranks.rank_processes import ProcessTree
from mldebug_agents.jobs.ranks.ras_address import BY_RAS, OFF
from mldebug_agents.jobs.ranks.registry import ProcessInfo

PAUSES = (15.0, 30.0, 60.0, 120.0, 300.0)  # seconds until the next question about the same ones
MAX_PROCESSES = 1024  # of one question

Ask = Callable[[Job], RasWorld | None]
Ident = tuple[int, int]  # pid, start
Group = tuple[int, str, str, str]  # user, network and pid namespace, address


class _RasQuestion(msgspec.Struct):
    """The questions asked about one group so far."""

    who: frozenset[Ident] = frozenset()
    tries: int = 0
    due: float = 0.0


class RasRanks:
    """Remembers which ranks NCCL RAS has named, and which processes not to ask about again. There is one per agent."""

    def __init__(self, ask: Ask, clock: Callable[[], float]) -> None:
        """`clock`: in seconds, of any origin."""
        self._ask = ask
        self._clock = clock
        self._claims: dict[Ident, RankClaim] = {}
        self._questions: dict[Group, _RasQuestion] = {}

    def complete(
        self, processes: Mapping[int, ProcessInfo], tree: ProcessTree
    ) -> dict[int, ProcessInfo]:
        """Return the processes (by pid) with the rank added that NCCL RAS names for them.

        May ask RAS about one group of processes, which takes up to two seconds.
        """
        # of a process that could not be read in this look all is kept: on a busy machine it is read in the next one
        here = {(pid, stat.start_ticks) for pid, stat in tree.stats.items()}
        self._claims = {key: claim for key, claim in self._claims.items() if key in here}
        groups = self._unknown(processes, tree)
        self._questions = {
            group: one for group, one in self._questions.items() if not here.isdisjoint(one.who)
        }
        for group, members in groups.items():
            if self._ask_when_due(self._questions.setdefault(group, _RasQuestion()), members):
                break  # the others in the next look: each may take two seconds
        return {pid: self._with_claim(process) for pid, process in processes.items()}

    def _with_claim(self, process: ProcessInfo) -> ProcessInfo:
        claim = self._claims.get(process.key)
        return msgspec.structs.replace(process, claim=claim) if claim else process

    def _unknown(
        self, processes: Mapping[int, ProcessInfo], tree: ProcessTree
    ) -> dict[Group, list[ProcessInfo]]:
        """Processes that may be ranks, by group; children of processes that are ranks are left out."""
        ranked = {process.stat.pid for process in processes.values() if process.key in self._claims}
        groups: dict[Group, list[ProcessInfo]] = defaultdict(list)
        for pid, one in sorted(processes.items()):
            if _nameless(one) and pid not in ranked and ranked.isdisjoint(tree.ancestors(pid)):
                groups[one.uid, one.network, one.namespace, one.nccl_ras].append(one)
        return groups

    def _ask_when_due(self, question: _RasQuestion, members: Sequence[ProcessInfo]) -> bool:
        """Ask about a group where a process is new or it is time to try again; returns whether NCCL RAS was asked."""
        now, who = self._clock(), frozenset(process.key for process in members)
        if question.who.isdisjoint(who):
            question.tries, question.due = 0, now
        elif who <= question.who and question.tries > len(PAUSES):
            return False
        if (
            0 < question.due - now <= max(PAUSES)
        ):  # farther off it can be only where the clock was set back
            return False
        question.who, question.due = who, now + PAUSES[min(question.tries, len(PAUSES) - 1)]
        question.tries += 1
        self._note(members, self._ask(_as_job(members[:MAX_PROCESSES])))
        return True

    def _note(self, members: Sequence[ProcessInfo], world: RasWorld | None) -> None:
        if world is None:
            return
        run = hashlib.sha256(world.key.encode()).hexdigest()[:32]
        for one in members:
            rank = world.ranks.get(_inside(one))
            if rank is not None:
                self._claims[one.key] = RankClaim(
                    launcher=BY_RAS, priority=0, rank=rank, world_size=world.size, run_id=run
                )


def _nameless(process: ProcessInfo) -> bool:
    """Has it NCCL, and no environment that says which rank it is? A forked child can use no GPU of its parent's."""
    alone = (
        process.claim is not None
        and process.claim.launcher == "single"
        and not process.claim.problem
    )
    return alone and bool(process.libraries.nccl) and not process.forked and process.nccl_ras != OFF


def _inside(process: ProcessInfo) -> int:
    """Its pid as it knows it itself."""
    return process.namespace_pid or process.stat.pid


def _as_job(members: Sequence[ProcessInfo]) -> Job:
    """The processes as a job, for the question: their numbers are no ranks yet."""
    ranks = tuple(
        RankIdentity(
            rank=number,
            world_size=len(members),
            pid=one.stat.pid,
            start_ticks=one.stat.start_ticks,
            uid=one.uid,
            namespace_pid=one.namespace_pid,
            nccl_ras=one.nccl_ras,
        )
        for number, one in enumerate(members)
    )
    return Job(id="", name="", launcher=BY_RAS, world_size=len(members), ranks=ranks)
