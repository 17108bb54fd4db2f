"""What must survive a restart of the agent: what was learned of each run, its open incident, exits
of ranks, small values, and processes that could not be ended.

Rows are kept in memory, and a thread (`WriterThread`) has a child process write them. An incident
is always written before its report, and the end of an incident after its last report: whenever the
agent is killed, the next one finds the id that the reports bear.
"""

import logging
import socket
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from mldebug.core.errors import MldebugError
from mldebug.core.model import Job
from mldebug.diagnosis.exits.model import KnownExits
from mldebug.incidents.incident import Incident
from mldebug.stall.progress_clock import StallMemory
from mldebug.status.snapshot import SourceState
from mldebug_agents.state.client import RemoteArchive, StateClient
from mldebug_agents.state.failure_text import begun_anew, gone
from mldebug_agents.state.messages import (
    CheckState,
    DeleteRun,
    Memo,
    StoredState,
    StoreLeftovers,
    StoreMemo,
)
from mldebug_agents.state.run_row import (
    RunRow,
    ends_of_all,
    known_as,
    renamed,
    rows_of,
    stored,
    stored_ends,
)
from mldebug_agents.state.writer_thread import REPORT, RETRY_FIRST, Work, WriterThread
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.child.link import WorkerStarter
from mldebug_agents.system.spawn import ForkedWorker

log = logging.getLogger("mldebug")

OPEN_SECONDS = 3.0  # a start waits so long for its memory, and then goes on without


class StateStore:
    """What the agent keeps on disk, as the main loop's thread uses it.

    Calls change memory; the thread `writer` writes to disk later.
    """

    def __init__(
        self,
        state_dir: Path,
        starter: WorkerStarter,
        on_socket: Callable[[socket.socket | None], None] | None = None,
        *,
        retry: float = RETRY_FIRST,
    ) -> None:
        """`on_socket` gets the listening socket of the state dir, in the writer's thread, and None where the state dir has gone:
        as long as the socket is open the kernel keeps the file system on which it was made.
        """
        self.state_dir = state_dir
        self.leftovers: tuple[Leftover, ...] = ()  # of earlier agents, as they were found
        self.earlier_reports: frozenset[str] = frozenset()  # ids of those that earlier agents wrote
        self.losses = 0  # times that the state dir was removed or replaced under us
        self._rows: dict[str, RunRow] = {}
        self._found: dict[str, RunRow] = {}
        self._ends: dict[str, KnownExits] = {}
        self._memos: dict[str, bytes] = {}
        self._begun_anew = threading.Event()
        self._left: tuple[Leftover, ...] = ()
        self._wants_socket = on_socket is not None
        self._on_socket = on_socket or _close
        self._has_socket = False
        self._client = StateClient(
            starter, state_dir, self._note_loss, self._close_socket, listener=self._wants_socket
        )
        self.archive = RemoteArchive(self._client)
        self.writer = WriterThread(state_dir, self._open_folder, retry=retry)

    # --- opening -----------------------------------------------------------------------------------

    def start(self, timeout: float = OPEN_SECONDS) -> bool:
        """Open the state dir.

        False where that fails for now, or takes longer than `timeout` seconds: it is tried again.
        Raises where the dir can never be used.
        """
        return self.writer.start(timeout)

    def check_state_dir(self) -> bool:
        """Have the state dir checked, and log a writer that hangs.

        True where the dir was found removed or replaced and was made anew: all rows are queued
        again, the earlier reports are lost.
        """
        self.writer.log_if_stuck()
        self.writer.put("check", lambda: self._client.ask(CheckState()))
        if not self._begun_anew.is_set():
            return False
        self._begun_anew.clear()
        for job_id, row in {**self._found, **self._rows}.items():
            self._put(job_id, row)
        for job_id, ends in self._ends.items():
            self._put_ends(job_id, ends)
        for name in self._memos:
            self._put_memo(name)
        self._put_leftovers()
        if self._wants_socket:
            self.writer.put("socket", self._open_socket)
        return True

    @property
    def opened(self) -> bool:
        """Whether the state that an earlier agent left on disk has been read."""
        return self.writer.opened

    @property
    def refusal(self) -> MldebugError | None:
        """An error that showed only after the start and because of which this agent must end; None without one."""
        return self.writer.refusal

    @property
    def lost(self) -> int:
        """How many reports, and writes that failed for good, were dropped."""
        return self.writer.lost

    @property
    def waiting(self) -> int:
        """How many reports are not on disk yet."""
        return self.writer.waiting

    def states(self) -> tuple[SourceState, ...]:
        """The state of the writer thread, as one entry for status and metrics."""
        return (self.writer.state(),)

    # --- what was, what is ---------------------------------------------------------------------------

    def memory(self, job_id: str) -> StallMemory | None:
        """What this run's stall watch had learnt when it was stored last; None where nothing is stored."""
        row = self._rows.get(job_id) or self._found.get(job_id)
        return row.memory if row else None

    def incident(self, job_id: str) -> Incident | None:
        """The stored incident of this run; None where it has none."""
        row = self._rows.get(job_id) or self._found.get(job_id)
        return row.incident if row else None

    def earlier(self, job_id: str) -> StallMemory | None:
        """What an earlier agent stored of this run's stall watch; None where there is nothing, or
        this agent has stored something newer.
        """
        row = self._found.get(job_id)
        return row.memory if row else None

    def earlier_incident(self, job_id: str) -> Incident | None:
        """The incident of this run that an earlier agent left open; None where there is none, or
        this agent has stored something newer.
        """
        row = self._found.get(job_id)
        return row.incident if row else None

    def adopt(self, job: Job) -> None:
        """Find the row of this job that an earlier agent stored under another id, by its rank
        processes, and store it under the present id.

        The id of a job can change when its launcher or a rank dies.
        """
        if job.id in self._rows or job.id in self._found or not self.opened:
            return
        old = known_as(job, self._found, self._ends)
        if old is None:
            return
        log.info("run %s is known from before as %s", job.id, old)
        row = self._found[job.id] = renamed(self._found[old], job)
        self._put(job.id, row)
        if old in self._ends:
            self.keep_ends(job.id, self._ends[old])
        self.forget(old)

    def found(self) -> dict[str, RunRow]:
        """The rows of an earlier agent that no run of this agent has taken over, by job id.

        Empty until the state dir is open.
        """
        return dict(self._found) if self.opened else {}

    def failing(self, present: Collection[str]) -> dict[str, KnownExits]:
        """The stored exits, by job id, of runs that had lost a rank when an earlier agent ended,
        have no stored incident, and are not `present` any more.
        """
        gone = {
            one: ends for one, ends in self._ends.items() if one not in present and ends.failing
        }
        return {one: ends for one, ends in gone.items() if self.incident(one) is None}

    def forget_others(self, present: Collection[str]) -> None:
        """Delete what is stored of runs with exits that are not `present`, unless this agent has stored a row for them."""
        for job_id in [one for one in self._ends if one not in present and one not in self._rows]:
            self.forget(job_id)

    def keep(self, job_id: str, memory: StallMemory, incident: Incident | None) -> None:
        """Store the newest state of one run. The caller must not change `memory` afterwards."""
        row = self._rows[job_id] = RunRow(memory=memory, incident=incident)
        self._found.pop(job_id, None)
        self._put(job_id, row, last=incident is None)

    def ends(self, job_id: str) -> KnownExits | None:
        """The stored exits of the job's ranks; None where there are none."""
        return self._ends.get(job_id)

    def keep_ends(self, job_id: str, ends: KnownExits) -> None:
        """Store how ranks of a run have exited, in place of what was stored before."""
        self._ends[job_id] = ends
        self._put_ends(job_id, ends)

    def memo(self, name: str) -> bytes:
        """The stored value (JSON) of this name; empty where nothing is stored."""
        return self._memos.get(name, b"")

    def remember(self, name: str, data: bytes) -> None:
        """Store JSON under a name; empty data deletes it. Nothing is written where the value is unchanged."""
        if data != self._memos.get(name, b""):
            self._memos[name] = data
            self._put_memo(name)
            if not data:
                del self._memos[name]

    def is_stored(self, name: str) -> bool:
        """Whether no write of this value waits any more. A write that was dropped does not wait either."""
        return not self.writer.waits(f"memo:{name}")

    def open_incidents(self) -> set[str]:
        """Ids of the incidents that are stored as open."""
        rows = (*self._found.values(), *self._rows.values())
        incidents = (row.incident for row in rows)
        return {one.id for one in incidents if one is not None and one.state == "open"}

    def memos(self, beginning: str) -> tuple[str, ...]:
        """The names of kept values that begin with `beginning`."""
        return tuple(name for name in self._memos if name.startswith(beginning))

    def forget(self, job_id: str) -> None:
        """Delete the row and the exits of a run that is over."""
        self._rows.pop(job_id, None)
        self._found.pop(job_id, None)
        self._ends.pop(job_id, None)
        self.writer.drop(f"ends:{job_id}")
        self.writer.put(f"run:{job_id}", lambda: self._client.ask(DeleteRun(job_id)))

    def report(self, report_id: str, work: Work, job_id: str, owner: object) -> None:
        """Have a report of this run written by calling `work` in the writer thread, in its owner's turn, after what waits to be
        written of the run.

        A waiting one with the same id is replaced.
        """
        after = f"run:{job_id}", f"ends:{job_id}"
        self.writer.put(REPORT + report_id, work, owner=owner, after=after)

    def withdraw(self, report_id: str) -> None:
        """Do not write this report if it still waits, because its incident goes on under another id."""
        self.writer.drop(REPORT + report_id)

    def drop(self, report_id: str) -> None:
        """Remove this report, whether it waits or is written, because its incident goes on under another id."""
        self.withdraw(report_id)
        self.writer.put(f"drop:{report_id}", lambda: self.archive.remove(report_id))

    def prune(self) -> None:
        """Have reports beyond the limits of age, number and size removed, after everything that waits now.

        A failure is only logged.
        """
        self.writer.put("prune", self._prune)

    def _prune(self) -> None:
        try:
            self.archive.prune()
        except (OSError, MldebugError) as error:
            log.warning("no report was removed from %s: %s", self.state_dir, error)

    def leave(self, leftovers: tuple[Leftover, ...]) -> None:
        """Store the processes that could not be ended, if the list has changed."""
        if leftovers != self._left:
            self._left = leftovers
            self._put_leftovers()

    @property
    def worker(self) -> ForkedWorker | None:
        """The child process that serves the state dir; None where there is none."""
        return self._client.worker

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits, for at most `timeout` seconds, then remove the socket file and release the state dir."""
        self.writer.release()
        self.writer.put("end", self._client.end)
        if self.writer.close(timeout):
            self._client.hang_up()

    # --- inside ----------------------------------------------------------------------------------------

    def _put(self, job_id: str, row: RunRow, *, last: bool = True) -> None:
        self.writer.put(f"run:{job_id}", lambda: self._client.ask(stored(job_id, row)), last=last)

    def _put_ends(self, job_id: str, ends: KnownExits) -> None:
        self.writer.put(f"ends:{job_id}", lambda: self._client.ask(stored_ends(job_id, ends)))

    def _put_memo(self, name: str) -> None:
        memo = Memo(name, self._memos[name])
        self.writer.put(f"memo:{name}", lambda: self._client.ask(StoreMemo(memo)))

    def _put_leftovers(self) -> None:
        left = self._left
        self.writer.put("leftovers", lambda: self._client.ask(StoreLeftovers(left)))

    # --- in the writer's thread ------------------------------------------------------------------------

    def _open_folder(self) -> None:
        reply, listener = self._client.open()
        self._take_stored(reply.found)
        self.earlier_reports = frozenset(reply.reports)
        if listener is not None:
            self._use_socket(listener)
        elif self._wants_socket:
            log.warning("no socket in %s yet: %s", self.state_dir, reply.error)
            self.writer.put("socket", self._open_socket)

    def _take_stored(self, found: StoredState) -> None:
        self.leftovers = found.leftovers
        self._found = rows_of(found)
        self._ends = ends_of_all(found) | self._ends
        self._memos = {one.name: one.data for one in found.memos} | self._memos

    def _open_socket(self) -> None:
        if (listener := self._client.open_socket()) is not None:
            self._use_socket(listener)

    def _use_socket(self, listener: socket.socket) -> None:
        self._has_socket = True
        self._on_socket(listener)

    def _close_socket(self) -> None:
        if self._has_socket:
            self._has_socket = False
            log.error("%s", gone(self.state_dir))
            self._on_socket(None)
            self.writer.put("socket", self._open_socket)

    def _note_loss(self, how: str) -> None:
        self.losses += 1
        log.error("%s", begun_anew(self.state_dir, how))
        self.writer.begin_anew()
        self._begun_anew.set()


def _close(listener: socket.socket | None) -> None:
    if listener is not None:
        listener.close()
