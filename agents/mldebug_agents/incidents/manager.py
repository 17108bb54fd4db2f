"""The incidents of this node while they live: those that an earlier agent left, stalls, slowdowns, and failures.

Used by the main loop's thread only.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection

import msgspec

from mldebug.core.model import Gap, Judgement, NodeCapture
from mldebug.core.report_model import IncidentState
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.goodput.sentences import held_by_mount, slow_words
from mldebug.goodput.slow_storage import storage_words
from mldebug.goodput.straggler import Slowness
from mldebug.incidents.incident import (
    Incident,
    add_capture,
    add_exit,
    add_gap,
    add_timeline,
    close_incident,
    has_evidence,
    is_unreported,
)
from mldebug.stall.signals import StallDecision
from mldebug_agents.incidents.exits.similar_runs import AlikeRuns
from mldebug_agents.incidents.recent_failures import RecentFailures
from mldebug_agents.incidents.remote import RemoteIncidents
from mldebug_agents.incidents.report_writer import GoodputOf, IncidentWriter, owner
from mldebug_agents.state.run_row import RunRow
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.context import versions
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.watch.judging import judge
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

PATIENCE = 90.0  # seconds that a report waits for its first capture
MOVED = 2.0  # seconds after which progress belongs to no stall that was known before


class IncidentManager:
    """Opens the incidents of this node's runs, adds captures to them, counts each once, closes
    them, and has their reports written.

    `remote`: incidents that concern other nodes; `failures`: runs that failed lately.
    """

    def __init__(
        self,
        store: StateStore,
        clock: Clock | None = None,
        *,
        written: Callable[[Incident, Judgement, int], None] = lambda *_: None,
        renamed: Callable[[str], None] = lambda _: None,
        goodput: GoodputOf = lambda _: None,
        keep_failures: bool = False,
    ) -> None:
        """`written`, `renamed`, `goodput`: see `IncidentWriter`. `keep_failures`: other nodes may ask for captures of bad ends here."""
        self._writer = IncidentWriter(store, clock or Clock(), written, renamed, goodput)
        self.failures = RecentFailures(self._writer.clock, wanted=keep_failures)
        self.remote = RemoteIncidents(self._writer, self.failures)

    @property
    def counts(self) -> Counter[str]:
        """The number of incidents since the agent started, by "kind/verdict"."""
        return self._writer.counts

    @property
    def last_report(self) -> dict[str, str]:
        """The id of the newest incident, by "kind/verdict"."""
        return self._writer.last_report

    # --- restarts ------------------------------------------------------------------------------------

    def recall(self, run: Run) -> None:
        """Continue the incident of this run that was open when an earlier agent ended, under its id.

        Where this agent has opened the same stall anew meanwhile, both are joined.
        """
        known = self._writer.store.earlier_incident(run.job.id)
        mine = run.incident
        if known is None or known.state != "open" or (mine is not None and mine.key != known.key):
            return
        if mine is not None:  # the state dir came back late: the same stall was opened anew
            self._writer.store.withdraw(mine.id)
            timeline = (*known.timeline, *mine.timeline)
            captures = (*known.captures, *mine.captures)
            captures = captures if len(captures) < 3 else (captures[0], captures[-1])
            gaps = (*known.gaps, *mine.gaps)
            known = msgspec.structs.replace(
                known, timeline=timeline, captures=captures, gaps=gaps, job=known.job or mine.job
            )
        run.set_incident(known)
        self._writer.keep(run)
        if has_evidence(known):
            self._writer.write(known, run.judge(known), run.job.uid)

    def close_orphans(
        self, present: Collection[str], goes_on: Callable[[str, RunRow], bool] = lambda *_: False
    ) -> None:
        """End the incidents that an earlier agent left open of runs that are not `present` any
        more, and delete what is stored of them.

        A run is passed over where `goes_on` takes its row, since another attempt may follow.
        """
        for job_id, row in self._writer.store.found().items():
            if job_id in present or goes_on(job_id, row):
                continue
            incident = row.incident
            if incident is not None and incident.state == "open":
                why = "the run was gone when the agent came back"
                self._writer.end(incident, "ended", why, owner(incident))
            self._writer.store.forget(job_id)
        self._writer.store.forget_others(present)

    def store_open(self, run: Run, incident: Incident) -> None:
        """Store the open incident of a run that is gone, because its launcher may start another attempt."""
        self._writer.store.keep(run.job.id, run.watch.memory(), incident)

    def write_again(self, incident: Incident) -> None:
        """Judge the incident and write its report again, after the state dir was lost."""
        self._writer.write(incident, judge(incident), owner(incident))

    # --- captures ----------------------------------------------------------------------------------

    def captured(self, run: Run, capture: NodeCapture) -> None:
        """Add a finished capture to the run's open incident, and keep it for an incident that opens later."""
        run.keep_capture(capture)
        if run.incident is not None and run.incident.state == "open":
            self._take(run, run.incident, capture)

    def missed(self, run: Run, gap: Gap) -> None:
        """Add the reason why a capture could not be taken (`gap`) to the run's open incident; where the run has none, keep
        it for one that opens later.
        """
        if run.incident is None:
            run.add_missed(gap)
        elif run.incident.state == "open":
            run.set_incident(add_gap(run.incident, self._writer.now(run.incident), gap))
            self._writer.keep(run)

    def await_capture(self, run: Run) -> None:
        """Report an open incident without a capture, once it has waited for one for `PATIENCE` seconds."""
        incident = run.incident
        waits = incident is not None and run.judgement is None
        if (
            incident is not None
            and waits
            and self._writer.now(incident) - incident.detected_at > PATIENCE
        ):
            self.unseen(run)

    def unseen(self, run: Run) -> None:
        """Report the run's open incident without a capture, because none will come soon.

        Its id is shown already, so a report must exist.
        """
        if run.incident is None or has_evidence(run.incident):
            return
        first, judgement = run.judgement is None, run.judge(run.incident)
        if first:
            self._writer.announce(run, run.incident, judgement)
            self._writer.keep(run)
        self._writer.write(run.incident, judgement, run.job.uid)

    def close(self, run: Run, state: IncidentState, why: str) -> None:
        """Close the run's incident as recovered or ended, and write its report, even without a capture.

        `why`: a sentence for the timeline.
        """
        if run.incident is None:
            return
        if run.capture is not None and not has_evidence(run.incident):
            run.judge(add_capture(run.incident, run.capture))  # it was held back for others
        if is_unreported(run.incident) and run.judgement is not None:
            self._writer.announce(run, run.incident, run.judgement)  # nobody has come to it
        self._writer.end(run.incident, state, why, run.job.uid, run.judgement)
        run.forget_incident()
        self._writer.keep(run)

    def note(self, run: Run, at: float, words: str) -> None:
        """Add a line to the timeline of the run's open incident, if it has one.

        It is written with the next report. `at`: unix time by the wall clock.
        """
        if run.incident is not None:
            run.set_incident(add_timeline(run.incident, self._writer.clock.translate(at), words))

    def _take(self, run: Run, incident: Incident, capture: NodeCapture) -> None:
        # recalled ones, and those of which nothing was seen, are counted
        first = run.judgement is None
        at = max(incident.detected_at, self._writer.clock.translate(capture.taken_at))
        capture = msgspec.structs.replace(capture, taken_at=at)
        judgement = run.judge(add_capture(incident, capture))
        if first and incident.kind == "stall" and not incident.shared:
            self._writer.announce(run, incident, judgement)
        self._writer.keep(run)
        self._writer.write(run.incident or incident, judgement, run.job.uid)

    # --- stalls ------------------------------------------------------------------------------------

    def open(self, run: Run, decision: StallDecision, *, hold: bool = False) -> None:
        """Open an incident for this stall, with the capture that the run has already, or the reasons why it has none.

        An incident of the run that is open already is continued instead. `hold`: write no report yet: other nodes are asked first, and
        may have reported the same stall under another id.
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
            run.set_incident(msgspec.structs.replace(run.incident, key=decision.key))
            self.note(run, self._writer.clock.now(), f"noticed here, too: {decision.sentence}")
            return  # another node was first
        if run.incident is not None and run.incident.kind == "abnormal_end":
            self.note(run, self._writer.clock.now(), f"the others hang: {decision.sentence}")
            return  # they wait for the rank that ended: one story
        self.no_longer_slow(run, "ended", "the run has come to a halt")
        now, here = self._writer.clock.now(), self._writer.clock.steady()
        started = decision.stalled_since
        incident = Incident(
            id=self._writer.new_id(now, run.job.id),
            key=decision.key,
            job_id=run.job.id,
            job=run.job,
            detected_at=now,
            stalled_since=None if started is None else now - max(0.0, here - started),
            timeout=decision.timeout,
            why=decision.why_timeout,
            collective_timeout=decision.collective_timeout,
            sentence=decision.sentence,
            versions=versions(),
        )
        opened = f"incident opened: {decision.sentence}"
        incident = run.set_incident(add_timeline(incident, now, opened))
        self._writer.keep(run)
        if hold:
            return
        capture, missed = run.take_evidence()
        if capture is not None:
            self.captured(run, capture)
        for gap in missed:
            self.missed(run, gap)

    def withdraw(self, run: Run, why: str) -> None:
        """The run makes steps again: drop a stall that was held back for other nodes, with its captures.

        One that was reported or shared is closed as recovered.
        """
        if run.incident is None or run.incident.shared or not is_unreported(run.incident):
            self.close(run, "recovered", why)
            return
        run.forget_incident()
        self._writer.keep(run)

    def _has_moved(self, incident: Incident, decision: StallDecision) -> bool:
        """Did the run go on between that stall, which another node had told of, and this one?"""
        since = decision.stalled_since
        if since is None or not incident.shared:
            return False
        return (
            self._writer.clock.now() - (self._writer.clock.steady() - since)
            > incident.detected_at + MOVED
        )

    def _close_forgotten(self, run: Run) -> None:
        """The coordinator has not reported that the stall is over; what was captured since belongs to another stall."""
        capture, missed = run.take_evidence()
        self.close(run, "recovered", "it had moved on before the next stall, and nobody said so")
        if capture is not None:
            run.keep_capture(capture)
        for gap in missed:
            run.add_missed(gap)

    # --- slowdowns ---------------------------------------------------------------------------------

    def slow(self, run: Run, found: Slowness) -> None:
        """Open a slowdown of the run, or write its report again where other ranks are slow now, for another reason or for a slow mount.

        Nothing happens while the run has an incident of another kind.
        """
        now, incident = self._writer.clock.now(), run.incident
        words = storage_words(found) or slow_words(found, run.job.world_size)
        if incident is None:
            incident = Incident(
                id=self._writer.new_id(now, run.job.id),
                key=f"{run.job.id}/{run.job.attempt}/slow",
                job_id=run.job.id,
                job=run.job,
                detected_at=now,
                stalled_since=found.since or None,
                why="a mount has become slow" if storage_words(found) else "a rank is waited for",
                sentence=words,
                kind="slowdown",
                versions=versions(),
            )
        elif incident.kind != "slowdown" or _same(incident.slowness, found):
            return
        known = run.judgement is not None
        incident = msgspec.structs.replace(incident, slowness=found, sentence=words)
        run.set_incident(add_timeline(incident, now, words))
        judgement = run.judge(run.incident or incident)
        if not known:
            self._writer.announce(run, run.incident or incident, judgement)
        self._writer.keep(run)
        self._writer.write(run.incident or incident, judgement, run.job.uid)

    def no_longer_slow(self, run: Run, state: IncidentState, why: str) -> None:
        """Close the run's slowdown incident, if it has one, and write its report."""
        if run.incident is not None and run.incident.kind == "slowdown":
            self._writer.end(run.incident, state, why, run.job.uid, run.judgement)
            run.forget_incident()
            self._writer.keep(run)

    # --- abnormal ends -----------------------------------------------------------------------------

    def failed(
        self,
        run: Run,
        attempt: AttemptExit,
        outcome: ExitOutcome,
        before: Incident | None = None,
        alike: AlikeRuns = AlikeRuns(),  # noqa: B008 - a value
    ) -> None:
        """Open an incident for a failed attempt (or a lost rank), or continue `before`, and write its report.

        `alike`: how many recent runs of the script failed in the same way.
        """
        self.no_longer_slow(run, "ended", "the run has failed")
        now = self._writer.clock.now()
        incident = before or Incident(
            id=self._writer.new_id(now, run.job.id),
            key=f"{run.job.id}/{run.job.attempt}/end",
            job_id=run.job.id,
            detected_at=now,
            why="a rank ended",
            kind="abnormal_end",
            versions=versions(),
        )
        attempt = msgspec.structs.replace(
            attempt, step=_step(run, attempt), hooks=dict(run.hook_states)
        )
        incident = add_exit(incident, attempt, now, outcome.sentence)
        incident = msgspec.structs.replace(incident, alike=alike.failed, runs=alike.runs)
        if before is None and run.capture is not None:
            incident = add_capture(incident, run.capture)  # of a suspicion just before
        run.set_incident(incident)
        self._writer.keep(run)
        judgement = run.judge(incident)
        if before is None:
            self._writer.count(incident, judgement)
        log.warning("%s: %s", run.job.name, judgement.diagnosis.summary)
        self._writer.write(incident, judgement, run.job.uid)
        self.failures.note(run, attempt, incident, judgement)

    def close_failed(
        self, run: Run, incident: Incident, state: IncidentState, why: str
    ) -> Incident:
        """End an incident, whether or not its run still exists, and write its report. Returns the closed incident."""
        known = run.incident or self.remote.cases.get(incident.id) or incident
        closed = close_incident(known, state, self._writer.now(incident), why)
        self._writer.write(closed, judge(closed), run.job.uid)
        if run.incident is not None:
            run.forget_incident()
            self._writer.keep(run)
        return closed


def _same(known: Slowness | None, found: Slowness) -> bool:
    """Whether the same ranks are slow for the same reason, and wait for the same slow mount."""

    def reasons(one: Slowness) -> set[tuple[int, str, str]]:
        mounts = {(-1, "mount", held.evidence.mount) for held in held_by_mount(one.shares)}
        return mounts | {(slow.rank, slow.excess.kind, slow.excess.place) for slow in one.ranks}

    return known is not None and reasons(known) == reasons(found)


def _step(run: Run, attempt: AttemptExit) -> int | None:
    """The last one that this attempt was seen at."""
    look = run.last_look
    return look.step if look is not None and look.job.attempt == attempt.job.attempt else None
