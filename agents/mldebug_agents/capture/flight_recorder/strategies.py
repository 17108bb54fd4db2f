"""Reads the Flight Recorders that a capture still lacks, by each method in turn: worker server, the
dump of PyTorch's own timeout, and last the debug FIFO, for a few waiting ranks.

Each record says how it was read. What could not be read becomes a gap with the reason and, once for
a job, the setting that would give a better way.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from mldebug.capture.flight_recorder.access import (
    AccessKind,
    AccessMethod,
    AccessPlan,
    RankFacts,
    expected,
    plan,
)
from mldebug.core.model import FlightRecord, Gap, NodeCapture, RankCapture, RankIdentity
from mldebug.core.ranksets import MAX_RANK, fold_ranks
from mldebug.diagnosis.classify.rank_states import still_waiting
from mldebug_agents.capture.flight_recorder.fifo import Fifo, FifoTarget, patience, ranks_to_ask
from mldebug_agents.capture.flight_recorder.files import (
    RECENT,
    FoundDump,
    HangAwareReader,
    newest,
    read_dump,
    timed_out,
)
from mldebug_agents.capture.flight_recorder.sharing import SharedDumps
from mldebug_agents.capture.flight_recorder.worker_servers import SECONDS, ask_servers
from mldebug_agents.system.failure_counts import FailureCounts
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

WHAT = "Flight Recorder"
DEAF = "TtZX"  # states in which a process cannot answer
RESERVE = 2.0  # seconds of a capture that are kept for what comes after
MAX_SERVERS = 2  # of one rank that are asked
NOT_ASKED = "not asked by the debug FIFO, whose dump may hold a rank up for a minute: "
NOT_STALLED = f"{NOT_ASKED}that is for a job which the agent has seen stand still"
MOVED = f"{NOT_ASKED}a rank of the job moved, or was looked at only once"
WORKS = f"{NOT_ASKED}it does not wait"
BLOCKED = f"{NOT_ASKED}one of its threads is stopped, or in the kernel"
AS_ANOTHER = f"{NOT_ASKED}it waits as rank {{}} does"
SHARED = "its dump file is not believed: {} may have written it, too; give each job a TORCH_FR_DUMP_TEMP_FILE of its own"
NOT_ITS_OWN = f"{NOT_ASKED}it holds no such FIFO open: none was made, or another job has made one of that name since; give each job a name of its own"


COPY = "copy a dump that you want to keep to another place: PyTorch writes the next one over it"
POORER = {
    AccessKind.SERVER: "which does not tell where a call was made",
    AccessKind.DUMP: "which comes only once a call has taken too long",
    AccessKind.FIFO: "which may hold a rank up for a minute",
}


class AccessTools(NamedTuple):
    """What all attempts of one capture share.

    `reader` is for this capture only; `servers` starts a child process for each worker server.
    """

    host: Host
    reader: HangAwareReader
    servers: Reader
    fifo: Fifo
    sharing: SharedDumps
    unanswered: FailureCounts


class AccessAttempts:
    """The attempts of one capture to read Flight Recorders, and the results of each rank so far."""

    def __init__(self, tools: AccessTools, taken: NodeCapture, left: Callable[[], float]) -> None:
        self._tools, self._taken, self._left = tools, taken, left
        self._ranks = {rank.identity.rank: rank for rank in taken.ranks}
        self._plans: dict[int, AccessPlan] = {}
        self._expected: set[int] = set()  # of whom a reader misses a Flight Recorder
        self._had: dict[int, FlightRecord] = {}
        self._why: dict[int, list[str]] = {}
        self._awaited: tuple[int, ...] = ()
        self._lost: list[Gap] = []

    def add_rank(self, rank: int, facts: RankFacts) -> None:
        """Include this rank. A rank whose PyTorch version is not known is left out, and not listed as missing."""
        if facts.torch is not None:
            self._plans[rank] = plan(facts)
            self._expected.update({rank} if expected(facts) else ())

    def run(self, *, stalled: bool, resumed: bool = False) -> None:
        """Try every method, each for the ranks that have no record yet.

        `stalled`: the job is known to stand still, so the FIFO may be written; `resumed`: an
        earlier agent may have written it.
        """
        self._by_servers()
        for rank, rank_plan in self._plans.items():
            for way in rank_plan.ways:
                if way.kind is AccessKind.DUMP and rank not in self._had and self._left() > RESERVE:
                    self._note(rank, AccessKind.DUMP, self._recent(self._ranks[rank].identity, way))
        self._by_fifo(stalled=stalled, resumed=resumed)

    def _by_servers(self) -> None:
        places = {
            rank: way.places[:MAX_SERVERS]
            for rank, rank_plan in self._plans.items()
            for way in rank_plan.ways
            if way.kind is AccessKind.SERVER and not self._is_deaf(rank, DEAF)
        }
        of_user = {rank: self._tools.host.rights.of(self._ranks[rank].identity) for rank in places}
        world, limit = self._taken.job.world_size, min(SECONDS, self._left() - RESERVE)
        for rank, answer in ask_servers(self._tools.servers, places, of_user, world, limit).items():
            self._note(rank, AccessKind.SERVER, answer)

    def _recent(self, rank: RankIdentity, way: AccessMethod) -> FlightRecord | str:
        """The dump of its own timeout. A living rank has gone on since an old one, and since one that somebody asked for."""
        root, rights = self._tools.host.root_of(rank.pid), self._tools.host.rights.of(rank)
        reader, paths = self._tools.reader, [f"{root}{place}" for place in way.places]
        found = newest([read_dump(reader, path, rank, rights) for path in paths])
        if isinstance(found, str):
            return f"its dump file: {found}" if found else ""
        age = self._taken.taken_at - found.at
        if age > RECENT:
            return f"its dump file is {age:.0f} s old, and it may have gone on since"
        if not timed_out(found):
            return "its dump file is none of a timeout: no call in it had taken too long"
        return self._own(rank, found)

    def _own(self, one: RankIdentity, found: FoundDump) -> FlightRecord | str:
        """What a file says, unless somebody else may have written it."""
        root = f"{self._tools.host.root_of(one.pid)}"
        place = found.path.removeprefix(root)
        other = self._tools.sharing.other(self._tools.reader, one, place, found.mark.file)
        return SHARED.format(other) if other else found.record

    # --- the FIFO ----------------------------------------------------------------------------------

    def _by_fifo(self, *, stalled: bool, resumed: bool) -> None:
        """Ask by FIFO a few waiting ranks of a job that stands still, if no other method gave a record."""
        fifos = {
            rank: way.places[0]
            for rank, rank_plan in self._plans.items()
            for way in rank_plan.ways
            if way.kind is AccessKind.FIFO and rank not in self._had and not _has_hook(rank_plan)
        }
        waiting = still_waiting(self._taken) if fifos and stalled else None
        able = [
            rank
            for rank, fifo in fifos.items()
            if self._may_be_asked(rank, fifo, waiting, stalled=stalled)
        ]
        lagging = len(waiting or ()) < len(self._ranks)
        chosen = ranks_to_ask(lagging, able)
        for rank in able[len(chosen) :]:
            self._add_reason(rank, AS_ANOTHER.format(able[0]))
        targets = [self._fifo_target(rank, fifos[rank]) for rank in chosen]
        stood = self._taken.taken_at - self._taken.quiet_seconds
        left = patience(self._left())
        answers = self._tools.fifo.ask(self._tools.reader, targets, left, stood, resumed=resumed)
        owes = self._tools.fifo.owes  # also who is not asked now, and was in an earlier capture
        self._awaited = tuple(rank for rank in fifos if owes(self._fifo_target(rank, fifos[rank])))
        self._lost += [gap for it in targets if (gap := self._written_over(it)) is not None]
        for rank, answer in answers.items():
            one = self._ranks[rank].identity
            own = self._own(one, answer) if isinstance(answer, FoundDump) else answer
            self._note(rank, AccessKind.FIFO, own)

    def _written_over(self, it: FifoTarget) -> Gap | None:
        """Somebody may have asked for the dump that lay there."""
        found = self._tools.fifo.wrote_over(it)
        if found is None:
            return None
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.mtime))
        reason = f"that of {at} in {it.place} is written over by the one that we asked for"
        return Gap(
            what="earlier dump of its Flight Recorder",
            reason=reason,
            rank=it.identity.rank,
            way_out=COPY,
        )

    def _may_be_asked(
        self, rank: int, fifo: str, waiting: tuple[int, ...] | None, *, stalled: bool
    ) -> bool:
        """Says why not, where that is so."""
        if self._is_deaf(rank, f"D{DEAF}"):
            return False
        why = self._why_not(rank, waiting, stalled=stalled)
        if not why and fifo not in self._tools.host.open_names(self._ranks[rank].identity.pid):
            why = NOT_ITS_OWN
        self._add_reason(rank, why)
        return not why

    def _why_not(self, rank: int, waiting: tuple[int, ...] | None, *, stalled: bool) -> str:
        state = self._ranks[rank].process.state
        if not stalled or waiting is None:
            return MOVED if stalled else NOT_STALLED
        if state is None or any(thread.state in "DTt" for thread in state.threads):
            return BLOCKED
        if rank not in waiting:
            return WORKS
        other = self._shared_with(rank)
        return SHARED.format(other) if other else ""

    def _shared_with(self, rank: int) -> str:
        """Who else may answer into its files, "" where nobody."""
        one, places = self._ranks[rank].identity, self._plans[rank].dumps
        others = (self._tools.sharing.other(self._tools.reader, one, it, None) for it in places)
        return next(filter(None, others), "")

    def _fifo_target(self, rank: int, fifo: str) -> FifoTarget:
        one = self._ranks[rank].identity
        root = self._tools.host.root_of(one.pid)
        dumps = tuple(f"{root}{it}" for it in self._plans[rank].dumps)
        return FifoTarget(one, f"{root}{fifo}", dumps, self._tools.host.rights.of(one))

    def _is_deaf(self, rank: int, states: str) -> bool:
        """Is it stopped? Then it answers nothing, and what it was asked would be carried out much later."""
        one = self._ranks[rank].identity
        stat = self._tools.host.brief(one.pid)
        if stat is not None and stat.state not in states and stat.start_ticks == one.start_ticks:
            return False
        self._add_reason(rank, "it is stopped, or gone, and was not asked")
        return True

    # --- as values ---------------------------------------------------------------------------------

    def _note(self, rank: int, kind: AccessKind, answer: FlightRecord | str) -> None:
        if isinstance(answer, FlightRecord):
            self._had[rank] = with_access_kind(answer, kind, self._ranks[rank].identity)
        elif answer:
            self._tools.unanswered.count(kind)
            self._add_reason(rank, answer)

    def _add_reason(self, rank: int, reason: str) -> None:
        if reason and reason not in self._why.setdefault(rank, []):
            self._why[rank].append(reason)

    def capture(self) -> NodeCapture:
        """The capture with the Flight Recorders that were read, and in its `gaps` the reasons for those that could not be."""
        if not self._plans:
            return self._taken
        ranks = tuple(self._with(rank) for rank in self._taken.ranks)
        gaps = (*self._taken.gaps, *self._gaps(), *self._lost)
        return msgspec.structs.replace(self._taken, ranks=ranks, gaps=gaps, awaited=self._awaited)

    def _with(self, rank: RankCapture) -> RankCapture:
        record = self._had.get(rank.identity.rank)
        return rank if record is None else msgspec.structs.replace(rank, flight=record)

    def _gaps(self) -> Iterable[Gap]:
        """One for each reason, those that were had last; what to set the next time stands in the first alone."""
        better = next(
            (rank_plan.better for rank_plan in self._plans.values() if rank_plan.better), ""
        )
        reasons = {rank: self._reason(rank) for rank in self._plans}
        by_reason = _grouped({rank: why for rank, why in reasons.items() if why})
        for reason, ranks in sorted(by_reason.items(), key=lambda it: it[1][0] in self._had):
            yield Gap(
                what=WHAT,
                reason=f"{_ranks(ranks)}: {reason}",
                rank=ranks[0] if len(ranks) == 1 else None,
                way_out=better,
            )
            better = ""

    def _reason(self, rank: int) -> str:
        """Why there is none, or by which way it came where another setting gives a better one; "" where all is well."""
        rank_plan, record = self._plans[rank], self._had.get(rank)
        if record is not None:
            return (
                f"had by the {record.way}, {POORER[AccessKind(record.way)]}"
                if rank_plan.better
                else ""
            )
        if why := self._why.get(rank):
            return "; ".join(why)
        if _has_hook(rank_plan) or rank not in self._expected:  # the hook's own gap says why
            return ""
        closed = "; ".join(f"{kind}: {reason}" for kind, reason in rank_plan.closed)
        return f"no way leads to it ({closed})" if closed else "no dump yet"


def _has_hook(rank_plan: AccessPlan) -> bool:
    return any(way.kind is AccessKind.HOOK for way in rank_plan.ways)


def with_access_kind(record: FlightRecord, kind: AccessKind, rank: RankIdentity) -> FlightRecord:
    """The record, marked with how it was read.

    A default group without members (PyTorch names none for gloo) gets all ranks.
    """
    everybody = fold_ranks(range(min(rank.world_size, MAX_RANK + 1)))
    groups = tuple(
        msgspec.structs.replace(group, members=everybody)
        if not group.members and group.description == "default_pg"
        else group
        for group in record.groups
    )
    return msgspec.structs.replace(record, groups=groups, way=str(kind))


def _grouped(reasons: Mapping[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, reason in reasons.items():
        found.setdefault(reason, []).append(rank)
    return found


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {fold_ranks(ranks)}"
