"""The incidents of this node while they live: those that an agent before has left, stalls, and abnormal ends.

Belongs to the main loop's thread.
"""

import logging
from collections.abc import Callable, Collection

import msgspec

from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.incidents.incident import (
    Incident,
    add_capture,
    add_ending,
    end,
    is_seen,
    is_untold,
    judge,
    say,
)
from mldebug.incidents.report.build import State
from mldebug.stall.signals import StallDecision
from mldebug_agents.incidents.report_writer import owner, versions
from mldebug_agents.incidents.shared import SharedStalls
from mldebug_agents.state.run_row import RunRow
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

MOVED = 2.0  # seconds after which progress belongs to no stall that was known before


class Incidents(SharedStalls):
    """Opens them by a decision or a bad end, and takes up what was open before."""

    def recall(self, run: Run) -> None:
        """An incident that was open before our restart goes on under its id, whatever was told meanwhile."""
        known = self._ledger.earlier_incident(run.job.id)
        mine = run.incident
        if known is None or known.state != "open" or (mine is not None and mine.key != known.key):
            return
        if mine is not None:  # the state dir came back late: the same stall was opened anew
            self._ledger.withdraw(mine.id)
            timeline = (*known.timeline, *mine.timeline)
            captures = (*known.captures, *mine.captures)
            captures = captures if len(captures) < 3 else (captures[0], captures[-1])
            gaps = (*known.gaps, *mine.gaps)
            known = msgspec.structs.replace(
                known, timeline=timeline, captures=captures, gaps=gaps, job=known.job or mine.job
            )
        run.incident = known
        self._keep(run)
        if is_seen(known):
            run.judgement = judge(known)
            self._write(known, run.judgement, run.job.uid)

    def settle(
        self, present: Collection[str], goes_on: Callable[[str, RunRow], bool] = lambda *_: False
    ) -> None:
        """What was open when an earlier agent ended, of runs that are gone since, ends now; or its story `goes_on`."""
        for job_id, row in self._ledger.found().items():
            if job_id in present or goes_on(job_id, row):
                continue
            told = row.incident
            if told is not None and told.state == "open":
                why = "the run was gone when the agent came back"
                self._end(told, "ended", why, owner(told))
            self._ledger.forget(job_id)
        self._ledger.forget_others(present)

    def shelve(self, run: Run, incident: Incident) -> None:
        """Keep an incident whose run is gone, as long as its launch may go on with it."""
        self._ledger.keep(run.job.id, run.watch.memory(), incident)

    def write_again(self, incident: Incident) -> None:
        """The state dir was lost: what had been written is not there any more."""
        self._write(incident, judge(incident), owner(incident))

    # --- stalls ------------------------------------------------------------------------------------

    def open(self, run: Run, decision: StallDecision, *, hold: bool = False) -> None:
        """A stall is blamed on somebody; with the capture of its confirmation, where one was taken.

        `hold`: nothing is written yet, for other nodes are asked, who may know it under another id.
        """
        if run.incident is not None and run.incident.key == decision.key:
            return  # known from before our restart: the same stall keeps its id
        if (
            run.incident is not None
            and run.incident.kind == "stall"
            and self._has_moved(run.incident, decision)
        ):
            self._close_forgotten(run)
        if run.incident is not None and run.incident.kind == "stall":
            run.incident = msgspec.structs.replace(run.incident, key=decision.key)
            self.note(run, self._clock.now(), f"noticed here, too: {decision.sentence}")
            return  # another node was first
        if run.incident is not None and run.incident.kind == "abnormal_end":
            self.note(run, self._clock.now(), f"the others hang: {decision.sentence}")
            return  # they wait for the rank that ended: one story
        now, here = self._clock.now(), self._clock.steady()
        started = decision.stalled_since
        incident = Incident(
            id=self._new_id(now, run.job.id),
            key=decision.key,
            job_id=run.job.id,
            job=run.job,
            detected_at=now,
            stalled_since=None if started is None else now - max(0.0, here - started),
            timeout=decision.timeout,
            why=decision.why_timeout,
            sentence=decision.sentence,
            versions=versions(),
        )
        run.incident = say(incident, now, f"incident opened: {decision.sentence}")
        self._keep(run)
        if hold:
            return
        if run.capture is not None:
            self._take(run, run.incident, run.capture)
        missed, run.missed = run.missed, ()
        for gap in missed:
            self.missed(run, gap)

    def withdraw(self, run: Run, why: str) -> None:
        """It was held back for others, and moves again before anybody was told: no incident, and no capture of it is kept."""
        if run.incident is None or run.incident.shared or not is_untold(run.incident):
            self.close(run, "recovered", why)
            return
        run.incident, run.judgement, run.capture, run.missed = None, None, None, ()
        self._keep(run)

    def _has_moved(self, incident: Incident, decision: StallDecision) -> bool:
        """Did the run go on between that stall, which another node had told of, and this one?"""
        since = decision.stalled_since
        if since is None or not incident.shared:
            return False
        return self._clock.now() - (self._clock.steady() - since) > incident.detected_at + MOVED

    def _close_forgotten(self, run: Run) -> None:
        """Whoever coordinated has not told that it is over; what was captured since is of another stall."""
        capture, missed, run.capture, run.missed = run.capture, run.missed, None, ()
        self.close(run, "recovered", "it had moved on before the next stall, and nobody said so")
        run.capture, run.missed = capture, missed

    # --- abnormal ends -----------------------------------------------------------------------------

    def failed(
        self, run: Run, ending: AttemptExit, outcome: ExitOutcome, before: Incident | None = None
    ) -> None:
        """An attempt ended badly, or lost a rank; `before` is the incident of which this is more."""
        now = self._clock.now()
        incident = before or Incident(
            id=self._new_id(now, run.job.id),
            key=f"{run.job.id}/{run.job.attempt}/end",
            job_id=run.job.id,
            detected_at=now,
            why="a rank ended",
            kind="abnormal_end",
            versions=versions(),
        )
        ending = msgspec.structs.replace(ending, step=_step(run, ending), said=dict(run.said))
        run.incident = add_ending(incident, ending, now, outcome.sentence)
        if before is None and run.capture is not None:
            run.incident = add_capture(run.incident, run.capture)  # of a suspicion just before
        self._keep(run)
        run.judgement = judge(run.incident)
        if before is None:
            self._count(run.incident, run.judgement)
        log.warning("%s: %s", run.job.name, run.judgement.diagnosis.summary)
        self._write(run.incident, run.judgement, run.job.uid)
        self.bad_ends.note(run, ending, run.incident, run.judgement)

    def close_story(self, run: Run, incident: Incident, state: State, why: str) -> Incident:
        """End an incident whose run may be gone. Returns it as it was written."""
        known = run.incident or self.cases.get(incident.id) or incident
        closed = end(known, state, self._now(incident), why)
        self._write(closed, judge(closed), run.job.uid)
        if run.incident is not None:
            run.incident, run.judgement, run.capture = None, None, None
            self._keep(run)
        return closed


def _step(run: Run, ending: AttemptExit) -> int | None:
    """The last one that this attempt was seen at."""
    seen = run.seen
    return seen.step if seen is not None and seen.job.attempt == ending.job.attempt else None
