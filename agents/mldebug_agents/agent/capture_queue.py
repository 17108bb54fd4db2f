"""Orders of captures, and what becomes of them: one that is refused is tried at the next look, one that fails once more.

Belongs to the main loop's thread.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mldebug.core.model import Gap, Job, NodeCapture
from mldebug.core.redact import clean
from mldebug.incidents.uncaptured import WHAT
from mldebug.stall.signals import StallDecision
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

GLANCE = 1.0  # seconds that a capture watches: the run has been watched for long when it is taken

REFUSED = Gap(what=WHAT, reason="too many captures waited, so it was put off to the next look")


class QueuedCapture(NamedTuple):
    """An order to capture a job. `decision`: the stall decision that wants it, if one does; `again`: an earlier try has failed."""

    job: Job
    found: Discovery
    decision: StallDecision | None = None
    again: bool = False


def take(tools: CaptureTools, order: QueuedCapture) -> tuple[str, NodeCapture]:
    """Capture one job, in the worker thread. Returns its id and the capture, with the run's usual gap between steps."""
    job, found, decision = order.job, order.found, order.decision
    capture = tools.capturer(GLANCE).capture(
        *(job, found.children, found.remarks, found.gaps),
        quiet=decision.quiet if decision else None,
        resumed=decision is not None and decision.resumed,
    )
    if decision is None:
        return job.id, capture
    return job.id, msgspec.structs.replace(capture, usual_gap_seconds=decision.usual_gap)


class CaptureQueue:
    """Captures that were ordered but could not be taken yet. `put` hands an order to the worker; False where it takes none now."""

    def __init__(self, put: Callable[[QueuedCapture], bool], incidents: IncidentManager) -> None:
        self._put = put
        self._incidents = incidents
        self._owed: dict[str, QueuedCapture] = {}  # by job
        self._found = Discovery()

    def update(self, found: Discovery) -> None:
        """Take over the processes that the newest search of this node has found."""
        self._found = found

    def ask_now(self, run: Run) -> None:
        """Order a capture of the run without a stall decision: because a rank has ended and others live on, or other nodes ask for it."""
        self.ask(run, QueuedCapture(run.job, self._found))

    def ask_for(self, run: Run, decision: StallDecision) -> None:
        """Order the capture that a stall decision wants."""
        self.ask(run, QueuedCapture(run.job, self._found, decision))

    def ask(self, run: Run, order: QueuedCapture) -> None:
        """Order a capture of this run now; where the worker is busy, again after the next look."""
        if self._put(order):
            self._owed.pop(run.job.id, None)
            return
        self._owed[run.job.id] = order
        log.warning("%s: %s: %s", run.job.name, WHAT, REFUSED.reason)
        self._incidents.missed(run, REFUSED)

    def look(self, run: Run, found: Discovery) -> None:
        """After a new look at the run: order again a capture that had to wait."""
        if (owed := self._owed.get(run.job.id)) is not None:
            self.ask(run, owed._replace(job=run.job, found=found))
        self._incidents.await_capture(run)

    def failed(self, run: Run | None, order: QueuedCapture, error: Exception) -> None:
        """A capture failed: order it once more; after a second failure it becomes a gap. `run`: None where the run is gone."""
        words = clean(f"{type(error).__name__}: {error}", 200)
        log.warning("%s: capture failed: %s", order.job.name, words)
        if run is None:
            return
        if not order.again:
            self.ask(run, order._replace(again=True))
            return
        way_out = "mldebug doctor  # what works on this node as the agent's user"
        reason = f"it failed twice: {words}"
        self._incidents.missed(run, Gap(what=WHAT, reason=reason, way_out=way_out))
        self._incidents.unseen(run)

    def forget(self, run: Run) -> None:
        """Drop what waits for this run: it is over, or moves again."""
        self._owed.pop(run.job.id, None)
