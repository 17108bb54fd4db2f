"""The watch of launchers that have started no rank yet: each is a run from its first second, and an
incident where no rank has started after `stall.init_timeout`.

Before that no process is attached to; then the launcher's stack is taken once a minute until the
incident is open. Where agents of several nodes count the launchers together, the node with the
first name reports. Used by the main loop's thread only.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from mldebug.core.model import Job, NodeCapture
from mldebug.core.report_model import IncidentState
from mldebug.diagnosis.node_wait import in_exit_barrier, wait_words
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Stage, StallDecision
from mldebug_agents.watch.runs import Run

AGAIN = 60.0  # seconds between two captures of a launcher
WHY = "stall.init_timeout"


class IncidentOpener(Protocol):
    """The part of `IncidentManager` that is used here."""

    def open(self, run: Run, decision: StallDecision) -> None:
        """Open an incident of the run."""

    def captured(self, run: Run, capture: NodeCapture) -> None:
        """Add a capture to the run's open incident."""

    def close(self, run: Run, state: IncidentState, why: str) -> None:
        """Close the run's incident, where one is open. `why`: a sentence for its timeline."""


class LauncherWatch:
    """The runs whose launchers wait for other nodes.

    `make_run`: makes a run of a job; `capture`: orders the capture that a decision wants; `clock`: unix
    time.
    """

    def __init__(
        self,
        node: str,
        make_run: Callable[[Job, StallSettings], Run],
        capture: Callable[[Run, StallDecision], None],
        incidents: IncidentOpener,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.runs: dict[str, Run] = {}
        self._node, self._clock = node, clock
        self._make_run, self._capture = make_run, capture
        self._incidents = incidents
        self._captured_at: dict[str, float] = {}

    def look(
        self, waiting: tuple[Job, ...], started: frozenset[int], settings: StallSettings
    ) -> None:
        """Decide about each launcher without ranks that the search has found (`waiting`), and end the runs whose launcher
        no longer waits.

        `started`: pids of launchers that have ranks by now.
        """
        now = self._clock()
        here = {job.id: job for job in waiting}
        for gone in self.runs.keys() - here.keys():
            self._ended(self.runs.pop(gone), started)
            self._captured_at.pop(gone, None)
        for job in waiting:
            run = self.runs.get(job.id) or self._make_run(job, settings)
            self.runs[job.id] = run
            run.set_job(_with_present(job, run.job))
            decision = self._decide(run, now, settings.init_timeout)
            run.decide(decision)
            if decision.capture:
                self._captured_at[job.id] = now
                self._capture(run, decision)

    def captured(self, run: Run, capture: NodeCapture) -> None:
        """Put this capture into the run's incident, which is opened if need be.

        Nothing is opened where the launcher only waits for the launchers of other nodes to exit, or
        where that cannot be excluded.
        """
        launcher, wait = capture.launcher, run.job.waits
        if launcher is None or wait is None or run.decision is None or in_exit_barrier(launcher):
            return
        if wait.again and not launcher.stacks:
            return  # it may be in that barrier: nothing shows where it stands
        if run.incident is None:
            self._incidents.open(run, msgspec.structs.replace(run.decision, open=True))
        self._incidents.captured(run, msgspec.structs.replace(capture, job=run.job))

    def count(self, present: Mapping[str, tuple[str, ...]]) -> None:
        """Set on which nodes each run has a launcher, as the agents of all nodes count them. `present`: names of nodes by
        job id.
        """
        for job_id, run in self.runs.items():
            wait = run.job.waits
            names = tuple(sorted(present.get(job_id, ())))
            if wait is not None and names != wait.present:
                wait = msgspec.structs.replace(wait, present=names)
                run.set_job(msgspec.structs.replace(run.job, waits=wait))

    def _decide(self, run: Run, now: float, timeout: float) -> StallDecision:
        job, quiet = run.job, max(0.0, now - run.job.started_at)
        late = quiet >= timeout
        reports = late and self._reports(job)
        due = now - self._captured_at.get(job.id, 0.0) >= AGAIN
        return StallDecision(
            stage=Stage.CONFIRMED if late else Stage.WATCHING,
            sentence=wait_words(job, now),
            capture=reports and run.incident is None and due,
            key=f"{job.id}/nodes",
            quiet=quiet,
            timeout=timeout,
            why_timeout=WHY,
            stalled_since=time.monotonic() - quiet,
        )

    def _reports(self, job: Job) -> bool:
        """Whether this node reports: of several that count each other only the first."""
        present = job.waits.present if job.waits else ()
        return not present or present[0] == self._node

    def _ended(self, run: Run, started: frozenset[int]) -> None:
        if run.job.launcher_pid in started:
            self._incidents.close(run, "recovered", "its ranks have started")
        else:
            self._incidents.close(run, "ended", "the launcher is gone")


def _with_present(job: Job, before: Job) -> Job:
    """The job as it was found now, with the count of nodes that was known of it."""
    if job.waits is None or before.waits is None:
        return job
    wait = msgspec.structs.replace(job.waits, present=before.waits.present)
    return msgspec.structs.replace(job, waits=wait)
