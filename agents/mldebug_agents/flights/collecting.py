"""The ways to a Flight Recorder beside the hook, climbed for the ranks that the hook did not tell of: cheapest for the rank first.

The worker server, the dump of the job's own timeout, and last the debug FIFO, for a few ranks. What was had tells by which way;
what was not is a gap, with the reason and, once for a job, the setting that would have given a better way.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mldebug.diagnosis import roles
from mldebug.flight.ways import Kind, Plan, Way, plan
from mldebug.folding import MAX_RANK, fold_ranks
from mldebug.model import FlightRecord, Gap, NodeCapture, RankCapture, RankIdentity, Role
from mldebug_agents.flights.fifo import Asked, Fifo, seconds, whom
from mldebug_agents.flights.files import RECENT, Found, newest, read_dump, timed_out
from mldebug_agents.flights.means import Finder
from mldebug_agents.flights.servers import SECONDS, ask_servers
from mldebug_agents.host import Host
from mldebug_agents.reader import Reader

WHAT = "Flight Recorder"
DEAF = "TtZX"  # states in which a process cannot answer
RESERVE = 2.0  # seconds of a capture that are kept for what comes after
NOT_ASKED = (
    "not asked by the debug FIFO, whose dump may hold a rank up for a minute: it waits as {} does"
)


class Collector:
    """Keep one: it remembers what ranks were started with, and who still owes an answer."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host = host
        self._reader = reader
        self._finder = Finder(host, reader)
        self._fifo = Fifo(reader)

    def meet(self, ranks: Iterable[RankIdentity]) -> None:
        """Read of new ranks what is hard to read later."""
        self._finder.meet(tuple(ranks))

    def add(self, taken: NodeCapture, left: Callable[[], float]) -> NodeCapture:
        """The capture with what could be had; `left` says the seconds until its deadline. Never raises for what a job does."""
        climb = _Climb(self._reader, self._fifo, self._host, taken, left)
        for one in taken.ranks:
            state = one.process.state
            if one.flight is None and state is not None and state.state not in "ZX":
                hooked = one.said is not None
                means = self._finder.means(one.identity, state, hooked=hooked)
                if means.torch is not None:
                    climb.plans[one.identity.rank] = plan(means)
        climb.all()
        return climb.capture()

    def left_behind(self, ranks: Iterable[RankIdentity]) -> dict[int, FlightRecord]:
        """By rank, what PyTorch dumped of ranks that have ended; they were met while they lived."""
        found = {}
        for one in ranks:
            places = plan(self._finder.means(one, None, hooked=False)).dumps
            roots = [f"{self._host.root_of(pid)}" for pid in (one.pid, one.launcher_pid) if pid]
            paths = [f"{root}{place}" for root in (*roots, "") for place in places]
            dump = newest([read_dump(self._reader, path, one) for path in paths])
            if isinstance(dump, Found):
                found[one.rank] = _by(dump.record, Kind.DUMP, one)
        return found


class _Climb:
    """One capture: what is known of each rank so far."""

    def __init__(
        self,
        reader: Reader,
        fifo: Fifo,
        host: Host,
        taken: NodeCapture,
        left: Callable[[], float],
    ) -> None:
        self._reader, self._fifo, self._host = reader, fifo, host
        self._taken, self._left = taken, left
        self._ranks = {one.identity.rank: one for one in taken.ranks}
        self.plans: dict[int, Plan] = {}
        self.had: dict[int, FlightRecord] = {}
        self.why: dict[int, list[str]] = {}

    def all(self) -> None:
        """Every way, for the ranks that are still without an answer."""
        self._by_servers()
        for rank, its in self.plans.items():
            for way in its.ways:
                if way.kind is Kind.DUMP and rank not in self.had and self._left() > RESERVE:
                    self._note(rank, Kind.DUMP, self._recent(rank, way))
        self._by_fifo()

    def _by_servers(self) -> None:
        places = {
            rank: way.places[:2]
            for rank, its in self.plans.items()
            for way in its.ways
            if way.kind is Kind.SERVER and not self._deaf(rank)
        }
        seconds = min(SECONDS, self._left() - RESERVE)
        for rank, told in ask_servers(self._reader, places, seconds).items():
            self._note(rank, Kind.SERVER, told)

    def _recent(self, rank: int, way: Way) -> FlightRecord | str:
        """The dump of its own timeout. A living rank has gone on since an old one, and since one that a FIFO has caused."""
        one = self._ranks[rank].identity
        root = self._host.root_of(one.pid)
        found = newest([read_dump(self._reader, f"{root}{place}", one) for place in way.places])
        if isinstance(found, str):
            return f"its dump file: {found}" if found else ""
        age = self._taken.taken_at - found.at
        if age > RECENT:
            return f"its dump file is {age:.0f} s old, and it may have gone on since"
        kinds = {one.kind for one in self.plans[rank].ways}
        if Kind.FIFO in kinds and not timed_out(found):
            return "its dump file may be the answer to an earlier question"
        return found.record

    def _by_fifo(self) -> None:
        """Few ranks, and only those that no other way has told of."""
        fifos = {
            rank: way.places[0]
            for rank, its in self.plans.items()
            for way in its.ways
            if way.kind is Kind.FIFO and rank not in self.had and not self._deaf(rank)
        }
        if not fifos or self._left() <= RESERVE:
            return
        lagging, waiting = self._standing(fifos)
        chosen = whom(lagging, waiting)
        for rank in fifos.keys() - set(chosen):
            self._why(rank, NOT_ASKED.format(f"rank {waiting[0]}" if waiting else "another"))
        asked = [self._asked(rank, fifos[rank]) for rank in chosen]
        for rank, told in self._fifo.ask(asked, seconds(lagging, self._left())).items():
            self._note(rank, Kind.FIFO, told.record if isinstance(told, Found) else told)

    def _asked(self, rank: int, fifo: str) -> Asked:
        one = self._ranks[rank].identity
        root = self._host.root_of(one.pid)
        return Asked(one, f"{root}{fifo}", tuple(f"{root}{it}" for it in self.plans[rank].dumps))

    def _standing(self, among: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Who does something else than wait for the others, and who waits, or may."""
        role = roles(self._taken)
        lagging = tuple(r for r in among if role.get(r) in (Role.INERT, Role.BUSY))
        return lagging, tuple(r for r in among if r not in lagging)

    def _deaf(self, rank: int) -> bool:
        """Is it stopped? Then it answers nothing, and what it was asked would be carried out much later."""
        one = self._ranks[rank].identity
        stat = self._host.brief(one.pid)
        if stat is not None and stat.state not in DEAF and stat.start_ticks == one.start_ticks:
            return False
        self._why(rank, "it is stopped, or gone, and was not asked")
        return True

    def _note(self, rank: int, kind: Kind, told: FlightRecord | str) -> None:
        if isinstance(told, FlightRecord):
            self.had[rank] = _by(told, kind, self._ranks[rank].identity)
        else:
            self._why(rank, told)

    def _why(self, rank: int, reason: str) -> None:
        if reason and reason not in self.why.setdefault(rank, []):
            self.why[rank].append(reason)

    # --- as values ---------------------------------------------------------------------------------

    def capture(self) -> NodeCapture:
        """What was taken before, with all this."""
        if not self.plans:
            return self._taken
        ranks = tuple(self._with(one) for one in self._taken.ranks)
        gaps = (*self._taken.gaps, *self._gaps())
        return msgspec.structs.replace(self._taken, ranks=ranks, gaps=gaps)

    def _with(self, one: RankCapture) -> RankCapture:
        record = self.had.get(one.identity.rank)
        return one if record is None else msgspec.structs.replace(one, flight=record)

    def _gaps(self) -> Iterable[Gap]:
        """One for each reason; what to set the next time stands in the first alone."""
        better = next((its.better for its in self.plans.values() if its.better), "")
        reasons = {rank: self._reason(rank) for rank in self.plans}
        by_reason = _grouped({rank: why for rank, why in reasons.items() if why})
        for reason, ranks in by_reason.items():
            yield Gap(
                what=WHAT,
                reason=f"{_ranks(ranks)}: {reason}",
                rank=ranks[0] if len(ranks) == 1 else None,
                way_out=better,
            )
            better = ""

    def _reason(self, rank: int) -> str:
        """Why there is none, or by which way it came where another setting gives a better one; "" where all is well."""
        its, told = self.plans[rank], self.had.get(rank)
        if told is not None:
            return f"told by the {told.way}" if its.better else ""
        if why := self.why.get(rank):
            return "; ".join(why)
        if any(way.kind is Kind.HOOK for way in its.ways):  # its own gap says why
            return ""
        closed = "; ".join(f"{kind}: {reason}" for kind, reason in its.closed)
        return f"no way leads to it ({closed})" if closed else "no dump yet"


def _by(record: FlightRecord, kind: Kind, one: RankIdentity) -> FlightRecord:
    """Of gloo PyTorch tells no members of any group; those of the default group are all ranks."""
    everybody = fold_ranks(range(min(one.world_size, MAX_RANK + 1)))
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
