"""Restores what an earlier agent stored about this node, and has the present state stored for the next agent.

Used by the main loop's thread only. The state dir may become readable only later, or be removed
while the agent runs; both are handled here.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping

import msgspec

from mldebug.core.model import Job
from mldebug.diagnosis.exits.model import AttemptExit, KnownExits
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook
from mldebug_agents.incidents.exits.exit_tracker import ExitTracker
from mldebug_agents.incidents.exits.failed_attempts import FailedAttempts
from mldebug_agents.incidents.exits.known_exits import launcher_lives
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.state.run_row import RunRow
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.context import Context
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

AGENT = (
    "agent"  # the memo of the process that has this state dir; none where it has ended by itself
)
KILLED = "the agent before this one (process %s) was killed or has crashed; whether for memory: journalctl -k | grep -i 'killed process'"
BOOT = "boot"  # the memo of which boot of the node all that is stored is of
EVERY = 10.0  # seconds between two times that all is stored, and the state dir looked at


class Recovery:
    """Restores what an earlier agent left, and stores what a later one needs.

    `capture`: orders a capture of a run; `leftovers`: returns the child processes that could not be
    ended.
    """

    def __init__(
        self,
        store: StateStore,
        context: Context,
        leftovers: Callable[[], tuple[Leftover, ...]],
        incidents: IncidentManager,
        failed_attempts: FailedAttempts,
        exits: ExitTracker,
        capture: Callable[[Run], None],
    ) -> None:
        self._store = store
        self._context, self._leftovers = context, leftovers
        self._incidents = incidents
        self._failed_attempts = failed_attempts
        self._exits = exits
        self._capture = capture
        self._recalled = self._settled = False
        self._same_boot: bool | None = (
            None  # as the one that the earlier agent knew; None: it has not been read
        )
        self._stored_at = time.monotonic()

    def tick(self, runs: Mapping[str, Run], settings: StallSettings, *, looked: bool) -> None:
        """Restore what an earlier agent stored, once the state dir can be read, and store the present state every 10 s.

        `looked`: the node was searched, so `runs` holds all living runs; only then incidents of
        runs that are gone are closed. Raises where another agent uses the state dir.
        """
        if self._store.refusal is not None:
            raise self._store.refusal
        if not self._recalled and self._store.opened:
            self._recalled = True
            self._compare_boots()
            self._compare_agents()
            self._context.spawner.inherit(self._store.leftovers)
            for run in runs.values():
                self._resume(run, settings)
            self._store.writer.release()
        if self._recalled and not self._settled and looked:
            self._settled = True
            revived = self._revive(runs, settings)
            self._incidents.close_orphans({*runs, *revived}, self._goes_on)
        if time.monotonic() - self._stored_at > EVERY:
            self._stored_at = time.monotonic()
            self.store(runs)

    def _compare_boots(self) -> None:
        if boot := self._context.host.boot_id():
            before, now = self._store.memo(BOOT), msgspec.json.encode(boot)
            self._same_boot = before == now if before else None
            self._store.remember(BOOT, now)

    def _compare_agents(self) -> None:
        """Log it where the agent before was ended by somebody else; after a boot of the node that says nothing."""
        before = self._store.memo(AGENT)
        if before and self._same_boot:
            log.warning(KILLED, before.decode(errors="replace"))
        self._store.remember(AGENT, msgspec.json.encode(os.getpid()))

    def end(self, runs: Mapping[str, Run]) -> None:
        """Have the state stored for the last time: this agent ends by itself."""
        self.store(runs)
        if self._recalled:
            self._store.remember(AGENT, b"")

    def add_run(self, job: Job, settings: StallSettings) -> Run:
        """Make a run for a newly found job, with the stall memory and the open incident that an
        earlier agent stored for it.
        """
        self._store.adopt(job)
        run = Run(job, StallWatch(settings, self._store.memory(job.id)))
        self._take_up(run)
        return run

    def store(self, runs: Mapping[str, Run]) -> None:
        """Have the newest state of all runs stored.

        If the state dir was removed or replaced, it is filled again, and the reports of open
        incidents are written again.
        """
        lost = self._store.check_state_dir()
        for run in runs.values():
            self._store.keep(run.job.id, run.watch.memory(), run.incident)
            if lost and run.incident is not None:
                self._incidents.write_again(run.incident)
        if lost:
            self._failed_attempts.write_again()
        self._store.leave(self._leftovers())

    def _resume(self, run: Run, settings: StallSettings) -> None:
        """A run that was met before its memory could be read."""
        self._store.adopt(run.job)
        memory = self._store.earlier(run.job.id)
        if memory is not None and run.incident is None:
            run.resume(StallWatch(settings, memory))
        self._take_up(run)

    def _take_up(self, run: Run) -> None:
        """An agent that was killed between blame and evidence leaves an incident without a capture."""
        self._incidents.recall(run)
        self._exits.recall(run, self._store.ends(run.job.id))
        if run.incident is not None and not run.incident.captures:
            self._capture(run)

    def _revive(self, runs: Mapping[str, Run], settings: StallSettings) -> set[str]:
        """Jobs that an earlier agent saw failing and that ended while nobody watched: they are judged now."""
        gone = self._store.failing(runs)
        for ends in gone.values():
            if ends.failing is not None:
                self._exits.revive(self._gone(ends, ends.failing, settings), ends)
        return set(gone)

    def _gone(self, ends: KnownExits, job: Job, settings: StallSettings) -> Run:
        last_attempt = AttemptExit(job=job, identities=ends.identities, exits=ends.exits)
        if not launcher_lives(self._context.host, last_attempt, self._same_boot):
            job = msgspec.structs.replace(job, launcher_pid=None)
        run = Run(job, StallWatch(settings))
        run.update(JobLook(job=job, look=RunLook(at=time.monotonic())))
        return run

    def _goes_on(self, job_id: str, row: RunRow) -> bool:
        """Whether the launcher of a failed attempt lives and may start another one: both then belong to one incident."""
        attempt = row.incident.exit if row.incident else None
        if attempt is None or not launcher_lives(self._context.host, attempt, self._same_boot):
            return False
        if attempt.launcher_pid is None or not self._failed_attempts.recall(job_id, row):
            return False
        self._exits.expect(attempt.launcher_pid)
        return True
