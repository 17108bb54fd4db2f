"""Ranks of processes whose environment names none (Ray, bare ssh, spawned by Python): NCCL RAS knows who is which rank.

Asked are those that look like a job of one process and have NCCL mapped: all of one user, network and address together, once, and
a few times later where nobody could tell yet, since NCCL connects the ranks at their first collective. Belongs to the finder's thread.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from mldebug.capture.nccl_ras.process_map import World
from mldebug.core.model import Job, RankIdentity
from mldebug_agents.jobs.ranks.claims import Claim
from mldebug_agents.jobs.ranks.rank_processes import BY_RAS, Family
from mldebug_agents.jobs.ranks.ras_address import OFF
from mldebug_agents.jobs.ranks.registry import Process

PAUSES = (15.0, 30.0, 60.0, 120.0, 300.0)  # seconds until the next question about the same ones
MAX_PROCESSES = 1024  # of one question

Ask = Callable[[Job], World | None]
Ident = tuple[int, int]  # pid, start
Group = tuple[int, str, str, str]  # user, network and pid namespace, address


class _Asked(msgspec.Struct):
    """What became of the questions about one group."""

    who: frozenset[Ident] = frozenset()
    tries: int = 0
    due: float = 0.0


class RasRanks:
    """Keep one: it remembers what was told, and whom it is no use to ask."""

    def __init__(self, ask: Ask, clock: Callable[[], float]) -> None:
        """`clock`: in seconds, of any origin."""
        self._ask = ask
        self._clock = clock
        self._claims: dict[Ident, Claim] = {}
        self._asked: dict[Group, _Asked] = {}

    def complete(self, processes: Mapping[int, Process], family: Family) -> dict[int, Process]:
        """The same processes, with the claims that NCCL RAS makes for them."""
        here = {process.key for process in processes.values()}
        self._claims = {key: claim for key, claim in self._claims.items() if key in here}
        groups = self._unknown(processes, family)
        self._asked = {group: one for group, one in self._asked.items() if group in groups}
        for group, members in groups.items():
            if self._turn(self._asked.setdefault(group, _Asked()), members):
                break  # the others in the next look: each may take two seconds
        return {pid: self._with_claim(process) for pid, process in processes.items()}

    def _with_claim(self, process: Process) -> Process:
        claim = self._claims.get(process.key)
        return msgspec.structs.replace(process, claim=claim) if claim else process

    def _unknown(
        self, processes: Mapping[int, Process], family: Family
    ) -> dict[Group, list[Process]]:
        """Who may be a rank, but for the children of those that are one."""
        known = {process.stat.pid for process in processes.values() if process.key in self._claims}
        groups: dict[Group, list[Process]] = defaultdict(list)
        for pid, one in sorted(processes.items()):
            if _nameless(one) and pid not in known and known.isdisjoint(family.ancestors(pid)):
                groups[one.uid, one.network, one.namespace, one.nccl_ras].append(one)
        return groups

    def _turn(self, asked: _Asked, members: Sequence[Process]) -> bool:
        """Ask where somebody is new, or it is time to try again. Whether somebody was asked."""
        now, who = self._clock(), frozenset(one.key for one in members)
        if asked.who.isdisjoint(who):
            asked.tries, asked.due = 0, now
        elif who <= asked.who and asked.tries > len(PAUSES):
            return False
        if (
            0 < asked.due - now <= max(PAUSES)
        ):  # farther off it can be only where the clock was set back
            return False
        asked.who, asked.due = who, now + PAUSES[min(asked.tries, len(PAUSES) - 1)]
        asked.tries += 1
        self._note(members, self._ask(_as_job(members[:MAX_PROCESSES])))
        return True

    def _note(self, members: Sequence[Process], told: World | None) -> None:
        if told is None:
            return
        run = hashlib.sha256(told.key.encode()).hexdigest()[:32]
        for one in members:
            rank = told.ranks.get(_inside(one))
            if rank is not None:
                self._claims[one.key] = Claim(
                    launcher=BY_RAS, priority=0, rank=rank, world_size=told.size, run_id=run
                )


def _nameless(one: Process) -> bool:
    """Has it NCCL, and no environment that says which rank it is? A forked child can use no GPU of its parent's."""
    alone = one.claim is not None and one.claim.launcher == "single" and not one.claim.problem
    return alone and bool(one.libraries.nccl) and not one.forked and one.nccl_ras != OFF


def _inside(one: Process) -> int:
    """Its pid as it knows it itself."""
    return one.namespace_pid or one.stat.pid


def _as_job(members: Sequence[Process]) -> Job:
    """Whom to ask about: the numbers are no ranks yet."""
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
