"""The incidents of this node while they live: opened by a decision, fed by captures, closed, and written down.

Belongs to the main loop's thread. What touches the disk is handed to the writer as work, so a full or hung state dir
costs reports, never the loop.
"""

import logging
import platform
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec

from mldebug import __version__
from mldebug.across.members import End, Whole
from mldebug.endings.facts import Ending
from mldebug.endings.outcomes import Outcome
from mldebug.incident import (
    Incident,
    add_across,
    add_capture,
    add_cause,
    add_ending,
    add_gap,
    add_whole,
    end,
    is_seen,
    judge,
    say,
    write_report,
)
from mldebug.model import Asked, Gap, Judgement, NodeCapture
from mldebug.recorded import ASKED
from mldebug.report.build import State, make_id
from mldebug.report.html import render_html
from mldebug.stall.signals import Decision
from mldebug_agents.badends import BadEnds
from mldebug_agents.cases import Cases
from mldebug_agents.life.clock import Clock
from mldebug_agents.runs import Run
from mldebug_agents.state.ledger import Ledger
from mldebug_agents.state.rows import Row

log = logging.getLogger("mldebug")

MOVED = 2.0  # seconds after which progress belongs to no stall that was known before
PATIENCE = 90.0  # seconds that a report waits for its first capture


class Incidents:
    """Keeps the books. What is to be written goes to the ledger: an incident before its report."""

    def __init__(self, ledger: Ledger, clock: Clock | None = None) -> None:
        self.counts: Counter[str] = Counter()  # "kind/verdict"
        self.last_report: dict[str, str] = {}
        self._ledger = ledger
        self._clock = clock or Clock()
        self._last_id = ""
        self._node = platform.node()
        self.cases = Cases(ledger)
        self.bad_ends = BadEnds(self._clock)

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
        self, present: Collection[str], goes_on: Callable[[str, Row], bool] = lambda *_: False
    ) -> None:
        """What was open when an earlier agent ended, of runs that are gone since, ends now; or its story `goes_on`."""
        for job_id, row in self._ledger.found().items():
            if job_id in present or goes_on(job_id, row):
                continue
            told = row.incident
            if told is not None and told.state == "open":
                why = "the run was gone when the agent came back"
                self._end(told, "ended", why, _owner(told))
            self._ledger.forget(job_id)
        self._ledger.forget_others(present)

    def shelve(self, run: Run, incident: Incident) -> None:
        """Keep an incident whose run is gone, as long as its launch may go on with it."""
        self._ledger.keep(run.job.id, run.watch.memory(), incident)

    def write_again(self, incident: Incident) -> None:
        """The state dir was lost: what had been written is not there any more."""
        self._write(incident, judge(incident), _owner(incident))

    def open(self, run: Run, decision: Decision, *, hold: bool = False) -> None:
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
            versions=_versions(),
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

    def _has_moved(self, incident: Incident, decision: Decision) -> bool:
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

    # --- across nodes ------------------------------------------------------------------------------

    def called(self, run: Run, incident_id: str, sentence: str, *, caused: bool = False) -> None:
        """Another node has noticed a stall of this run: it is one incident, under one id.

        `caused`: that of a bad end on another node, which came first.
        """
        known, now = run.incident, self._clock.now()
        old = known.id if known is not None else ""
        if known is None:
            known = Incident(
                id=incident_id,
                key=f"{run.job.id}/{run.job.attempt}/{incident_id}",
                job_id=run.job.id,
                job=run.job,
                detected_at=now,
                why="another node has noticed it",
                sentence=sentence,
                versions=_versions(),
            )
            known = say(known, now, f"incident opened: {sentence}")
        elif incident_id != known.id and (caused or _goes_on(known, incident_id)):
            known = msgspec.structs.replace(known, id=incident_id)
            known = say(known, now, "other nodes know it already: from now on under their id")
        if known == run.incident and known.shared:
            return
        self.bad_ends.renamed(run.job.id, known)
        run.incident = known = msgspec.structs.replace(known, shared=True)
        self._keep(run)
        if run.judgement is not None:
            run.judgement = judge(known)
            self._write(known, run.judgement, run.job.uid)
        if old not in ("", known.id):
            self._ledger.drop(old)  # behind the new one: at no moment there is neither

    def together(
        self,
        run: Run | None,
        incident_id: str,
        found: tuple[NodeCapture, ...],
        asked: Asked,
        what: str,
        cause: End | None = None,
    ) -> Whole:
        """All nodes were captured: the report rests on all of them. `run`: where it has ranks here, too."""
        now = self._clock.now()
        incident = run.incident if run is not None else None
        if incident is None or (incident.kind != "stall" and incident.id != incident_id):
            run, incident = None, self._case(incident_id, found, now)
        again = bool(incident.across)
        incident = add_across(incident, found, asked, max(incident.detected_at, now), what)
        if cause is not None and incident.ending is None:
            incident = add_cause(incident, cause, max(incident.detected_at, now))
        judgement = judge(incident)
        if run is not None:
            run.incident, run.judgement = incident, judgement
            self._keep(run)
        else:
            self.cases.put(incident)
        if not again and not incident.counted and incident.ending is None:
            self._count(incident, judgement)
        log.warning("%s: %s", found[0].job.name, judgement.diagnosis.summary)
        self._write(incident, judgement, owner_of(found))
        return Whole(
            report=incident.id,
            node=self._node,
            nodes=len(incident.across),
            diagnosis=judgement.diagnosis,
        )

    def _case(self, incident_id: str, found: tuple[NodeCapture, ...], now: float) -> Incident:
        """Of a run that has no rank here."""
        job = found[0].job
        why = "a node of the run has noticed it"
        new = Incident(
            id=incident_id, key=incident_id, job_id=job.id, job=job, detected_at=now, why=why,
            versions=_versions(),
        )  # fmt: skip
        return self.cases.get(incident_id) or self.bad_ends.incident(incident_id) or new

    def told(self, run: Run, whole: Whole) -> None:
        """What all nodes together have come to, where another one has put it together."""
        incident = run.incident
        if incident is None or incident.id != whole.report or whole.node == self._node:
            return
        if incident.whole is not None and incident.whole.diagnosis == whole.diagnosis:
            return
        run.incident = add_whole(incident, whole, self._now(incident))
        run.judgement = judge(run.incident)
        self._keep(run)
        log.warning("%s: %s", run.job.name, run.judgement.diagnosis.summary)
        self._write(run.incident, run.judgement, run.job.uid)

    def rename_case(self, known: str, incident_id: str) -> None:
        """A stall of a run that has no rank here has another id from now on."""
        if (incident := self.cases.pop(known)) is None:
            return
        words = "other nodes know it already: from now on under their id"
        incident = msgspec.structs.replace(incident, id=incident_id)
        incident = say(incident, self._now(incident), words)
        self.cases.put(incident)
        self._write(incident, judge(incident), owner_of(incident.across))
        self._ledger.drop(known)

    def close_case(self, incident_id: str, state: State, why: str) -> None:
        """A stall of a run that has no rank here is over."""
        if (incident := self.cases.pop(incident_id)) is not None:
            self._end(incident, state, why, owner_of(incident.across), judge(incident))

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
        self._write(run.incident, run.judgement, run.job.uid)

    def close(self, run: Run, state: State, why: str) -> None:
        """The stall is over: the job moves again, or has ended. Without a capture that is told as well."""
        if run.incident is None:
            return
        if run.capture is not None and not is_seen(run.incident):
            run.incident = add_capture(run.incident, run.capture)  # it was held back for others
            run.judgement = judge(run.incident)
        if _untold(run.incident) and run.judgement is not None:
            self._tell(run, run.incident, run.judgement)  # nobody has come to it
        self._end(run.incident, state, why, run.job.uid, run.judgement)
        run.incident, run.judgement, run.capture, run.missed = None, None, None, ()
        self._keep(run)

    # --- abnormal ends -----------------------------------------------------------------------------

    def failed(
        self, run: Run, ending: Ending, outcome: Outcome, before: Incident | None = None
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
            versions=_versions(),
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

    def note(self, run: Run, at: float, words: str) -> None:
        """One more line in the timeline of an open incident; it is written with the next report."""
        if run.incident is not None:
            run.incident = say(run.incident, self._clock.translate(at), words)

    def close_story(self, run: Run, incident: Incident, state: State, why: str) -> Incident:
        """End an incident whose run may be gone. Returns it as it was written."""
        known = run.incident or self.cases.get(incident.id) or incident
        closed = end(known, state, self._now(incident), why)
        self._write(closed, judge(closed), run.job.uid)
        if run.incident is not None:
            run.incident, run.judgement, run.capture = None, None, None
            self._keep(run)
        return closed

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
        reported_at = self._now(incident)

        def work() -> None:
            report = write_report(incident, judgement, reported_at)
            evidence = evidence_files(incident)
            if incident.ending is not None:
                evidence[f"ending-{report.node}.json"] = msgspec.json.encode(incident.ending)
            self._ledger.archive.save(report, render_html(report), evidence, owner_uid=uid)
            self._ledger.archive.prune()

        self._ledger.report(incident.id, work)


def owner_of(captures: Sequence[NodeCapture]) -> int:
    """Whose job it is; root's where they do not agree."""
    owners = {one.job.uid for one in captures}
    return owners.pop() if len(owners) == 1 else 0


def evidence_files(incident: Incident) -> dict[str, bytes]:
    """The captures from which the same report can be made again; beside those of all nodes, what was seen here alone."""
    beside = "own" if incident.across else "capture"
    files = {
        f"{beside}-{number}-{capture.node}.json": msgspec.json.encode(capture)
        for number, capture in enumerate(incident.captures, 1)
    }
    files |= {f"capture-{one.node}.json": msgspec.json.encode(one) for one in incident.across}
    if incident.asked is not None:
        files[ASKED] = msgspec.json.encode(incident.asked)
    return files


def _goes_on(known: Incident, incident_id: str) -> bool:
    """Of two ids of one stall the first stays."""
    return known.kind == "stall" and incident_id < known.id


def _untold(incident: Incident) -> bool:
    """Was it held back for others, or left to another node to tell of, which never did?"""
    known = incident.counted or incident.whole is not None
    return incident.kind == "stall" and not known and not incident.across


def _versions() -> dict[str, str]:
    return {
        "mldebug": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def _step(run: Run, ending: Ending) -> int | None:
    """The last one that this attempt was seen at."""
    seen = run.seen
    return seen.step if seen is not None and seen.job.attempt == ending.job.attempt else None


def _owner(incident: Incident) -> int:
    """Whose job it was."""
    if incident.captures:
        return incident.captures[0].job.uid
    job = incident.ending.job if incident.ending else incident.job
    return job.uid if job else 0
