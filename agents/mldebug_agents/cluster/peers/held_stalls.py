"""Stalls that are held back until the coordinator has answered, so that one stall has one id. Not for ever: after `ALONE`
seconds a node reports alone, and says so.

Belongs to the main loop's thread.
"""

import time
from collections.abc import Callable, Mapping

from mldebug.cluster.quiet_check import HOLD
from mldebug.cluster.roster import SLOWEST
from mldebug.core.model import Gap
from mldebug_agents.cluster.peers.groups import ALONE, Circles
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.watch.runs import Run

WHAT = "the captures of other nodes"


class Held:
    """`capture` has a run captured soon."""

    def __init__(
        self, circles: Circles, incidents: IncidentManager, capture: Callable[[Run], None]
    ) -> None:
        self._circles, self._incidents, self._capture = circles, incidents, capture
        self._until: dict[str, float] = {}  # by job

    def turn(self, runs: Mapping[str, Run], now: float) -> None:
        """Report alone what was held back for too long."""
        self._until = {job_id: until for job_id, until in self._until.items() if job_id in runs}
        for job_id in [one for one, until in self._until.items() if now >= until]:
            self._alone(runs[job_id])

    def holds(self, run: Run) -> bool:
        """Is this stall to be told to others first? Then it is held back, and everybody is told at once."""
        circle = self._circles.of(run)
        if (
            circle is None
            or circle.found is None
            or run.seen is None
            or not run.seen.look.elsewhere
        ):
            return False
        circle.due = 0.0
        if run.incident is not None:
            return False  # others have told of it already: its capture is on its way
        self._until[run.job.id] = time.monotonic() + ALONE
        return True

    def wait(self, run: Run, seconds: float, now: float) -> None:
        """The coordinator waits, too: another node moves."""
        if run.job.id in self._until and seconds > 0:
            until = now + min(seconds, HOLD + SLOWEST) + ALONE
            self._until[run.job.id] = max(self._until[run.job.id], until)

    def holding(self, run: Run) -> bool:
        """Does it wait for the coordinator?"""
        return run.job.id in self._until

    def release(self, run: Run) -> bool:
        """It has been asked for; had it waited?"""
        return self._until.pop(run.job.id, None) is not None

    def _alone(self, run: Run) -> None:
        """Nobody has answered in time."""
        self.release(run)
        circle = self._circles.of(run)
        why = (circle.trouble if circle else "") or "the coordinator has not asked for it"
        reason = f"{why}; in {ALONE:g} s nobody has: this is what one node has seen"
        self._incidents.missed(run, Gap(what=WHAT, reason=reason))
        if run.capture is not None:
            self._incidents.captured(run, run.capture)
        else:
            self._capture(run)
