"""The incidents of this node while they live: opened by a decision, fed by captures, closed, and written down.

Belongs to the main loop's thread. What touches the disk is handed to the writer as work, so a full or hung state dir
costs reports, never the loop.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from mldebug.incident import Incident, add_capture, end, judge, say, write_report
from mldebug.model import Judgement, NodeCapture
from mldebug.report.build import State, make_id
from mldebug.report.html import render_html
from mldebug.stall.signals import Decision
from mldebug_agents.ledger import Ledger
from mldebug_agents.runs import Run

log = logging.getLogger("mldebug")

Work = Callable[[], None]


class Incidents:
    """Keeps the books. `write` takes work for the writer thread, False where too much of it waits already."""

    def __init__(self, ledger: Ledger, write: Callable[[Work], bool]) -> None:
        self.counts: Counter[str] = Counter()  # "kind/verdict"
        self.last_report: dict[str, str] = {}
        self.lost = 0
        self._ledger = ledger
        self._order = write

    def recall(self, run: Run) -> None:
        """An incident that was open before our restart goes on under its id."""
        run.incident = self._ledger.incident(run.job.id)
        if run.incident is not None and run.incident.captures:
            run.judgement = judge(run.incident)

    def open(self, run: Run, decision: Decision) -> None:
        """A stall is blamed on somebody; with the capture of its confirmation, where one was taken."""
        if run.incident is not None and run.incident.key == decision.key:
            return  # known from before our restart: the same stall keeps its id
        now, here = time.time(), time.monotonic()
        started = decision.stalled_since
        incident = Incident(
            id=make_id(now, run.job.id),
            key=decision.key,
            job_id=run.job.id,
            detected_at=now,
            stalled_since=None if started is None else now - max(0.0, here - started),
            timeout=decision.timeout,
            why=decision.why_timeout,
            sentence=decision.sentence,
        )
        run.incident = say(incident, now, f"incident opened: {decision.sentence}")
        if run.capture is not None:
            self._take(run, run.incident, run.capture)

    def captured(self, run: Run, capture: NodeCapture) -> None:
        """A capture has come back; it is kept for an incident that opens later, too."""
        run.capture = capture
        if run.incident is not None and run.incident.state == "open":
            self._take(run, run.incident, capture)

    def close(self, run: Run, state: State, why: str) -> None:
        """The stall is over: the job moves again, or has ended."""
        if run.incident is None:
            return
        if run.judgement is not None:
            closed = end(run.incident, state, time.time(), why)
            self._write(closed, run.judgement, run.job.uid)
        run.incident, run.judgement, run.capture = None, None, None
        self._ledger.keep(run.job.id, run.watch.memory(), None)

    def _take(self, run: Run, incident: Incident, capture: NodeCapture) -> None:
        first = not incident.captures
        run.incident = add_capture(incident, capture)
        run.judgement = judge(run.incident)
        if first:
            kind = f"stall/{run.judgement.diagnosis.verdict}"
            self.counts[kind] += 1
            self.last_report[kind] = incident.id
            log.warning("%s: %s", run.job.name, run.judgement.diagnosis.summary)
        self._write(run.incident, run.judgement, run.job.uid)

    def _write(self, incident: Incident, judgement: Judgement, uid: int) -> None:
        def work() -> None:
            report = write_report(incident, judgement, time.time())
            evidence = {
                f"capture-{number}-{capture.node}.json": msgspec.json.encode(capture)
                for number, capture in enumerate(incident.captures, 1)
            }
            self._ledger.archive.save(report, render_html(report), evidence, owner_uid=uid)
            self._ledger.archive.prune()

        if not self._order(work):
            self.lost += 1
