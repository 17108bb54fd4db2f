"""The books of this node's incidents: each is fed by captures, counted once, closed, and written down.

Belongs to the main loop's thread. What touches the disk is handed to the writer as work.
"""

import logging
import platform
from collections import Counter
from collections.abc import Callable

import msgspec

from mldebug.core.model import Gap, Judgement, NodeCapture
from mldebug.incidents.incident import (
    Incident,
    add_capture,
    add_gap,
    end,
    is_seen,
    is_untold,
    judge,
    say,
)
from mldebug.incidents.report.build import State, make_id
from mldebug_agents.incidents.recent_failures import BadEnds
from mldebug_agents.incidents.remote_cases import Cases
from mldebug_agents.incidents.report_writer import write
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

PATIENCE = 90.0  # seconds that a report waits for its first capture


class Books:
    """What is to be written goes to the ledger: an incident before its report."""

    def __init__(self, ledger: StateStore, clock: Clock | None = None) -> None:
        self.counts: Counter[str] = Counter()  # "kind/verdict"
        self.last_report: dict[str, str] = {}
        self._ledger = ledger
        self._clock = clock or Clock()
        self._last_id = ""
        self._node = platform.node()
        self.cases = Cases(ledger)
        # whoever wants to hear of each incident that is written, and of ids that are given up
        self.heard: Callable[[Incident, Judgement, int], None] = lambda *_: None
        self.renamed: Callable[[str], None] = lambda _: None
        self.bad_ends = BadEnds(self._clock)

    def captured(self, run: Run, capture: NodeCapture) -> None:
        """A capture has come back; it is kept for an incident that opens later, too."""
        run.capture = capture
        if run.incident is not None and run.incident.state == "open":
            self._take(run, run.incident, capture)

    def missed(self, run: Run, gap: Gap) -> None:
        """A capture could not be had; told with the incident that is open, or opens later."""
        if run.incident is None:
            run.missed = tuple(dict.fromkeys((*run.missed, gap)))
        elif run.incident.state == "open":
            run.incident = add_gap(run.incident, self._now(run.incident), gap)
            self._keep(run)

    def await_capture(self, run: Run) -> None:
        """An incident whose capture hangs is not told at its end alone."""
        incident = run.incident
        waits = incident is not None and run.judgement is None
        if incident is not None and waits and self._now(incident) - incident.detected_at > PATIENCE:
            self.unseen(run)

    def unseen(self, run: Run) -> None:
        """No capture will come soon: who reads the id of an open incident finds a report."""
        if run.incident is None or is_seen(run.incident):
            return
        first = run.judgement is None
        run.judgement = judge(run.incident)
        if first:
            self._tell(run, run.incident, run.judgement)
            self._keep(run)
        self._write(run.incident, run.judgement, run.job.uid)

    def close(self, run: Run, state: State, why: str) -> None:
        """The stall is over: the job moves again, or has ended. Without a capture that is told as well."""
        if run.incident is None:
            return
        if run.capture is not None and not is_seen(run.incident):
            run.incident = add_capture(run.incident, run.capture)  # it was held back for others
            run.judgement = judge(run.incident)
        if is_untold(run.incident) and run.judgement is not None:
            self._tell(run, run.incident, run.judgement)  # nobody has come to it
        self._end(run.incident, state, why, run.job.uid, run.judgement)
        run.incident, run.judgement, run.capture, run.missed = None, None, None, ()
        self._keep(run)

    def note(self, run: Run, at: float, words: str) -> None:
        """One more line in the timeline of an open incident; it is written with the next report."""
        if run.incident is not None:
            run.incident = say(run.incident, self._clock.translate(at), words)

    def _end(
        self, incident: Incident, state: State, why: str, uid: int, known: Judgement | None = None
    ) -> None:
        """Write how it ended; one that nobody saw is judged now, and counted unless its report was written before."""
        closed = end(incident, state, self._now(incident), why)
        judgement = known if known is not None and is_seen(closed) else judge(closed)
        if known is None and not is_seen(closed):
            self._count(closed, judgement)
        self._write(closed, judgement, uid)

    def _tell(self, run: Run, incident: Incident, judgement: Judgement) -> None:
        self._count(incident, judgement)
        run.incident = msgspec.structs.replace(run.incident or incident, counted=True)
        log.warning("%s: %s", run.job.name, judgement.diagnosis.summary)

    def _count(self, incident: Incident, judgement: Judgement) -> None:
        kind = f"{incident.kind}/{judgement.diagnosis.verdict}"
        self.counts[kind] += 1
        self.last_report[kind] = incident.id

    def _take(self, run: Run, incident: Incident, capture: NodeCapture) -> None:
        first = (
            run.judgement is None
        )  # recalled ones, and those of which nothing was seen, are counted
        at = max(incident.detected_at, self._clock.translate(capture.taken_at))
        capture = msgspec.structs.replace(capture, taken_at=at)
        run.incident = add_capture(incident, capture)
        run.judgement = judge(run.incident)
        if first and incident.kind == "stall" and not incident.shared:
            self._tell(run, run.incident, run.judgement)
        self._keep(run)
        self._write(run.incident, run.judgement, run.job.uid)

    def _keep(self, run: Run) -> None:
        self._ledger.keep(run.job.id, run.watch.memory(), run.incident)

    def _now(self, incident: Incident) -> float:
        """An agent that starts after the clock was set back still tells the story in order."""
        return max(incident.detected_at, self._clock.now())

    def _new_id(self, now: float, job_id: str) -> str:
        """Never one that was given before: a clock that was set back would make a report replace another."""
        made = make_id(now, job_id)
        while made == self._last_id:
            now += 1.0
            made = make_id(now, job_id)
        self._last_id = made
        return made

    def _write(self, incident: Incident, judgement: Judgement, uid: int) -> None:
        write(self._ledger, incident, judgement, self._now(incident), uid)
        self.heard(incident, judgement, uid)
