"""Orders to capture a job (read the stacks and kernel state of all its ranks), kept until the
capture worker takes them.

An order that the worker refuses is tried again after the next look at the job; a capture that fails
is tried once more. Used by the main loop's thread only.
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
    """An order to capture a job.

    `found`: the processes of the last search; `decision`: the stall decision that wants the
    capture, if one does; `again`: a first try has failed.
    """

    job: Job
    found: Discovery
    decision: StallDecision | None = None
    again: bool = False


def take(tools: CaptureTools, order: QueuedCapture) -> tuple[str, NodeCapture]:
    """Capture one job; runs in the worker thread.

    Returns the job's id and the capture. If a stall decision ordered it, the capture also holds the
    run's usual gap between steps (seconds).
    """
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
    """Captures that were ordered but could not be taken yet.

    `put` hands an order to the capture worker and returns False where its queue is full.
    `incidents` gets the reasons for missing captures.
    """

    def __init__(self, put: Callable[[QueuedCapture], bool], incidents: IncidentManager) -> None:
        self._put = put
        self._incidents = incidents
        self._owed: dict[str, QueuedCapture] = {}  # by job
        self._found = Discovery()

    def update(self, found: Discovery) -> None:
        """Use the result of the newest search of this node for the next orders."""
        self._found = found

    def ask_now(self, run: Run) -> None:
        """Order a capture of the run that no stall decision wants: a rank has ended while others
        live, or another node asks for it.
        """
        self.ask(run, QueuedCapture(run.job, self._found))

    def ask_for(self, run: Run, decision: StallDecision) -> None:
        """Order the capture that a stall decision wants."""
        self.ask(run, QueuedCapture(run.job, self._found, decision))

    def ask(self, run: Run, order: QueuedCapture) -> None:
        """Order a capture of this run now.

        If the worker refuses, that is noted for the run's incident as the reason why it has none, and the order is repeated at
        the next `look`.
        """
        if self._put(order):
            self._owed.pop(run.job.id, None)
            return
        self._owed[run.job.id] = order
        log.warning("%s: %s: %s", run.job.name, WHAT, REFUSED.reason)
        self._incidents.missed(run, REFUSED)

    def look(self, run: Run, found: Discovery) -> None:
        """Called after each look at the run: repeat an order that was refused, and have an incident
        that waits too long for its capture reported without it.
        """
        if (owed := self._owed.get(run.job.id)) is not None:
            self.ask(run, owed._replace(job=run.job, found=found))
        self._incidents.await_capture(run)

    def failed(self, run: Run | None, order: QueuedCapture, error: Exception) -> None:
        """Called when a capture failed: order it once more.

        After a second failure its gap goes into the incident, which is reported without a capture.
        `run` None: the run is gone, nothing is ordered.
        """
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
        """Drop an order that still waits for this run, because the run is over or makes steps again."""
        self._owed.pop(run.job.id, None)
