"""Reads Flight Recorders without the hook: notes facts of the ranks while they live, adds records
to a capture, reads the dumps of ranks that have ended.
"""

import math
import threading
from collections.abc import Callable, Iterable, Sequence

from mldebug.capture.flight_recorder.access import AccessKind, RankFacts, plan
from mldebug.core.model import FlightRecord, NodeCapture, RankCapture, RankIdentity
from mldebug.jobs.known_issues.model import Software
from mldebug_agents.capture.flight_recorder.available import rank_facts
from mldebug_agents.capture.flight_recorder.fifo import Fifo
from mldebug_agents.capture.flight_recorder.files import (
    RECENT,
    FoundDump,
    HangAwareReader,
    newest,
    read_dump,
    timed_out,
)
from mldebug_agents.capture.flight_recorder.sharing import Key, KnownRank, SharedDumps
from mldebug_agents.capture.flight_recorder.strategies import (
    AccessAttempts,
    AccessTools,
    with_access_kind,
)
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.jobs.ranks.libraries import InstalledSoftware, Program
from mldebug_agents.system.failure_counts import FailureCounts
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

ENDED = "ZX"  # states of a process
MAX_KNOWN = 4096  # processes
YOUNG, RIGHTS_EVERY = (
    60.0,
    30.0,
)  # seconds: of the life of a rank in which its rights are read at each look, and between two later reads


class FlightRecorderCollector:
    """Reads Flight Recorders without the hook.

    There is one per agent: it remembers how ranks were started, and which have not answered yet.
    Safe from any thread.
    """

    def __init__(
        self,
        host: Host,
        reader: Reader,
        installed: InstalledSoftware,
        unanswered: FailureCounts | None = None,
    ) -> None:
        self.unanswered = unanswered or FailureCounts()
        self._host = host
        self._reader = reader
        self._installed = installed
        self._fifo = Fifo()
        self._lock = threading.Lock()
        self._ranks: dict[Key, KnownRank] = {}
        self._living: tuple[KnownRank, ...] = ()
        self._rights_read: dict[Key, float] = {}  # when; unix

    def update(self, found: Discovery) -> None:
        """Note the PyTorch, settings and rights of all ranks of this node, because they cannot be
        read after a rank has ended.

        Opens no file of a job.
        """
        met = tuple(
            KnownRank(rank, job.id, job.name, program, self._software(job.id, rank.pid, program))
            for job in found.jobs
            for rank in job.ranks
            if (program := found.programs.get(rank.pid)) is not None
        )
        self._read_rights(met)
        with self._lock:
            for one in met:
                self._ranks.pop(one.key, None)  # the newest stand last
                self._ranks[one.key] = one
            for key in list(self._ranks)[:-MAX_KNOWN]:
                del self._ranks[key]
            self._living = met

    def _read_rights(self, living: Sequence[KnownRank]) -> None:
        """Have the host note the rights of these ranks, for when they have ended. Three files each, so not at each look."""
        now, before = self._host.clock(), self._rights_read
        self._rights_read = {}
        for one in living:
            read_at = before.get(one.key, -math.inf)
            if now - one.identity.started_at < YOUNG or not 0 <= now - read_at < RIGHTS_EVERY:
                self._host.rights.of(one.identity)
                read_at = now
            self._rights_read[one.key] = read_at

    def add(
        self,
        taken: NodeCapture,
        left: Callable[[], float],
        *,
        stalled: bool = False,
        resumed: bool = False,
    ) -> NodeCapture:
        """The capture with the Flight Recorders that could be read, and gaps for the others. Never
        raises for what a job does.

        `left()`: seconds until its deadline; `stalled`: the job has stood still for long, so the
        debug FIFO may be written; `resumed`: an earlier agent may have written it already, so it is not
        written a second time.
        """
        sharing = SharedDumps(self._host, self._living)
        tools = AccessTools(
            *(self._host, HangAwareReader(self._reader), self._reader, self._fifo, sharing),
            self.unanswered,
        )
        attempts = AccessAttempts(tools, taken, left)
        for one in taken.ranks:
            state = one.process.state
            if one.flight is None and state is not None and state.state not in ENDED:
                attempts.add_rank(one.identity.rank, self._facts(taken.job.id, one))
        attempts.run(stalled=stalled, resumed=resumed)
        return attempts.capture()

    def left_behind(self, ranks: Iterable[RankIdentity]) -> dict[int, FlightRecord]:
        """By rank, the dump files that PyTorch wrote of ranks that have ended. Only ranks that
        `update` noted while they lived.

        Empty unless a dump shows a call beyond its timeout; then all dumps of about that time
        are returned.
        """
        reader = HangAwareReader(self._reader)
        found = [(rank, self._left_by(reader, rank)) for rank in ranks]
        dumps = [(one, dump) for one, dump in found if isinstance(dump, FoundDump)]
        late = [dump.at for _, dump in dumps if timed_out(dump)]
        return {
            one.rank: with_access_kind(dump.record, AccessKind.DUMP, one)
            for one, dump in dumps
            if any(abs(dump.at - at) <= RECENT for at in late)
        }

    # --- for one rank ------------------------------------------------------------------------------

    def _software(self, job: str, pid: int, program: Program, *, read: bool = False) -> Software:
        return self._installed.of(job, pid, program.libraries, read=read)

    def _rank_record(self, rank: RankIdentity) -> KnownRank | None:
        with self._lock:
            return self._ranks.get((rank.pid, rank.start_ticks))

    def _facts(self, job: str, rank: RankCapture) -> RankFacts:
        """The facts of a rank; its PyTorch version is read now if it was not read yet."""
        entry, hooked = self._rank_record(rank.identity), rank.hook is not None
        if entry is None:
            return RankFacts(rank=rank.identity.rank, hooked=hooked)
        software = entry.software
        if not software.torch:
            software = self._software(job, rank.identity.pid, entry.program, read=True)
        return rank_facts(
            *(self._host, rank.identity, entry.program, software, rank.process.state), hooked=hooked
        )

    def _left_by(self, reader: HangAwareReader, rank: RankIdentity) -> FoundDump | str:
        """Its dump, in its own root where that is still there, else in that of its launcher or in ours, if they are the same."""
        entry = self._rank_record(rank)
        if entry is None:
            return ""
        places = plan(rank_facts(self._host, rank, entry.program, entry.software)).dumps
        rights = self._host.rights.of(rank)
        paths = [f"{root}{place}" for root in self._host.rights.roots(rank) for place in places]
        return newest([read_dump(reader, path, rank, rights) for path in paths])
