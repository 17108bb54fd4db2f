"""What must survive a restart: the rhythm of each run, its open incident, and what we left behind.

Rows are in memory; the scribe has them written by the state keeper, a child. On disk an incident always comes before its report, and the end of an
incident after its last report: whenever the agent is killed, the next one finds the id that the reports bear.
"""

import logging
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from mldebug.errors import MldebugError
from mldebug.incident import Incident
from mldebug.model import Job
from mldebug.snapshot import SourceState
from mldebug.stall.pulse import StallMemory
from mldebug_agents.spawn import Worker
from mldebug_agents.starting.leftovers import Leftover
from mldebug_agents.state.keeper import Keeper, RemoteArchive, WorkerStarter
from mldebug_agents.state.scribe import REPORT, RETRY_FIRST, Scribe, Work
from mldebug_agents.state.wire import Forget, Keep, Leave, StoredRow

log = logging.getLogger("mldebug")

OPEN_SECONDS = 3.0  # a start waits so long for its memory, and then goes on without


class Row(msgspec.Struct):
    """One run as it is kept."""

    memory: StallMemory
    incident: Incident | None = None


class Ledger:
    """The agent's memory. Belongs to the main loop's thread; what it writes goes through `scribe`."""

    def __init__(
        self,
        state_dir: Path,
        starter: WorkerStarter,
        on_door: Callable[[socket.socket], None] | None = None,
        *,
        retry: float = RETRY_FIRST,
    ) -> None:
        """`on_door` gets the listening socket of the state dir, in the scribe's thread."""
        self.state_dir = state_dir
        self.leftovers: tuple[Leftover, ...] = ()  # of earlier agents, as they were found
        self._rows: dict[str, Row] = {}
        self._found: dict[str, Row] = {}
        self._left: tuple[Leftover, ...] = ()
        self._wants_door = on_door is not None
        self._got_door = on_door or socket.socket.close
        self._keeper = Keeper(starter, state_dir, door=self._wants_door)
        self.archive = RemoteArchive(self._keeper)
        self.scribe = Scribe(self._open_place, retry=retry)

    # --- opening -----------------------------------------------------------------------------------

    def start(self, timeout: float = OPEN_SECONDS) -> bool:
        """Open the state dir; False where it gives no answer yet. Raises where it can never be used."""
        if self.scribe.start(timeout):
            return True
        why = self.scribe.state().error or f"no answer in {timeout:g} s"
        log.error(
            "the state dir %s cannot be used now (%s): going on without it; reports wait in memory",
            *(self.state_dir, why),
        )
        return False

    @property
    def opened(self) -> bool:
        """Whether what an earlier agent left has been read."""
        return self.scribe.opened

    @property
    def refusal(self) -> MldebugError | None:
        """Why this agent must not go on, where that came out late."""
        return self.scribe.refusal

    @property
    def lost(self) -> int:
        """Reports and states that were dropped."""
        return self.scribe.lost

    @property
    def waiting(self) -> int:
        """Reports that are not on disk yet."""
        return self.scribe.waiting

    def states(self) -> tuple[SourceState, ...]:
        """How writing does."""
        return (self.scribe.state(),)

    # --- what was, what is ---------------------------------------------------------------------------

    def memory(self, job_id: str) -> StallMemory | None:
        """What the watch of that run knew before our restart."""
        row = self._rows.get(job_id) or self._found.get(job_id)
        return row.memory if row else None

    def incident(self, job_id: str) -> Incident | None:
        """The incident that was open then."""
        row = self._rows.get(job_id) or self._found.get(job_id)
        return row.incident if row else None

    def earlier(self, job_id: str) -> StallMemory | None:
        """As an earlier agent left it, and nobody has stored it since."""
        row = self._found.get(job_id)
        return row.memory if row else None

    def earlier_incident(self, job_id: str) -> Incident | None:
        """The incident that an earlier agent left open."""
        row = self._found.get(job_id)
        return row.incident if row else None

    def adopt(self, job: Job) -> None:
        """Know a run again by its processes: its id may be another one since its launcher or a rank has died."""
        if job.id in self._rows or job.id in self._found or not self.opened:
            return
        old = next((one for one, row in self._found.items() if _same(row.incident, job)), None)
        if old is None:
            return
        before = self._found[old]
        memory = msgspec.structs.replace(before.memory, run=job.id, attempt=job.attempt)
        incident = before.incident and msgspec.structs.replace(before.incident, job_id=job.id)
        log.info("run %s is known from before as %s", job.id, old)
        row = self._found[job.id] = Row(memory=memory, incident=incident)
        self.scribe.put(f"run:{job.id}", lambda: self._write(job.id, row))
        self.forget(old)

    def found(self) -> dict[str, Row]:
        """All that an earlier agent left and nobody has taken up or forgotten since."""
        return dict(self._found) if self.opened else {}

    def keep(self, job_id: str, memory: StallMemory, incident: Incident | None) -> None:
        """Store the newest state of one run. `memory` must not change any more."""
        row = self._rows[job_id] = Row(memory=memory, incident=incident)
        self._found.pop(job_id, None)
        self.scribe.put(f"run:{job_id}", lambda: self._write(job_id, row), last=incident is None)

    def forget(self, job_id: str) -> None:
        """Drop a run that is over."""
        self._rows.pop(job_id, None)
        self._found.pop(job_id, None)
        self.scribe.put(f"run:{job_id}", lambda: self._keeper.ask(Forget(job_id)))

    def report(self, report_id: str, work: Work) -> None:
        """Have a report written; a newer one of the same id takes the place of one that waits."""
        self.scribe.put(REPORT + report_id, work)

    def withdraw(self, report_id: str) -> None:
        """A report that waits is told under another id."""
        self.scribe.drop(REPORT + report_id)

    def leave(self, leftovers: tuple[Leftover, ...]) -> None:
        """Remember processes that could not be ended; only a change is written."""
        if leftovers != self._left:
            self._left = leftovers
            self.scribe.put("leftovers", lambda: self._keeper.ask(Leave(leftovers)))

    @property
    def worker(self) -> Worker | None:
        """The child that keeps the state dir."""
        return self._keeper.worker

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits, for a while, and take the socket away."""
        self.scribe.release()
        self.scribe.put("end", self._keeper.end)
        if self.scribe.close(timeout):
            self._keeper.hang_up()

    # --- in the scribe's thread ------------------------------------------------------------------------

    def _open_place(self) -> None:
        reply, door = self._keeper.open()
        self.leftovers = reply.leftovers
        self._found = {one.job_id: row for one in reply.rows if (row := _row(one))}
        if door is not None:
            self._got_door(door)
        elif self._wants_door:
            log.warning("no socket in %s yet: %s", self.state_dir, reply.error)
            self.scribe.put("door", self._open_door)

    def _open_door(self) -> None:
        if (door := self._keeper.open_door()) is not None:
            self._got_door(door)

    def _write(self, job_id: str, row: Row) -> None:
        told = msgspec.json.encode(row.incident) if row.incident else None
        self._keeper.ask(Keep(job_id, msgspec.json.encode(row.memory), told))


def _same(incident: Incident | None, job: Job) -> bool:
    """Has the incident's capture seen a process of this job?"""
    seen = (rank for capture in incident.captures for rank in capture.job.ranks) if incident else ()
    here = {(rank.pid, rank.start_ticks) for rank in job.ranks}
    return any((rank.pid, rank.start_ticks) in here for rank in seen)


def _row(stored: StoredRow) -> Row | None:
    """None for a row of another version, which is no reason to start without the others."""
    try:
        known = msgspec.json.decode(stored.incident, type=Incident) if stored.incident else None
        return Row(msgspec.json.decode(stored.memory, type=StallMemory), known)
    except msgspec.MsgspecError:
        return None
