"""An incident while it lives: opened by a decision or by the end of a rank, fed by captures, ended by recovery or the
end of the job. Pure.
"""

from typing import Literal

import msgspec

from mldebug.cluster.messages import End, Whole
from mldebug.core.model import (
    Diagnosis,
    Gap,
    Job,
    Judgement,
    NodeCapture,
    Noun,
    QueriedNodes,
)
from mldebug.core.report_model import CaptureView, Comparison, Report, Stall, TimelineEvent
from mldebug.core.text import rfc3339
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.judgement import judgement_of, with_gaps, without_processes
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.timeline import with_exits
from mldebug.incidents.report.build import State, build_report
from mldebug.incidents.report.changes import comparison, later_words
from mldebug.incidents.uncaptured import judge_uncaptured, stand_in
from mldebug.stall.sentences import seconds

MAX_ATTEMPTS = 1000
MAX_GAPS = 8


class Incident(Noun, frozen=True, kw_only=True):
    """One stall or one abnormal end of one run. Times are unix seconds."""

    id: str
    key: str  # run, attempt, last step: two agents that see the same stall have the same
    job_id: str
    job: Job | None = (
        None  # as it was when the incident was opened: all that a report has where no capture comes
    )
    detected_at: float
    stalled_since: float | None = None
    timeout: float = 0.0
    why: str = ""
    sentence: str = ""
    state: State = "open"
    over_at: float | None = None  # when it recovered or ended
    timeline: tuple[TimelineEvent, ...] = ()
    captures: tuple[NodeCapture, ...] = ()
    gaps: tuple[Gap, ...] = ()  # captures that could not be had
    kind: Literal["stall", "abnormal_end"] = "stall"
    ending: AttemptExit | None = None  # of the newest attempt that failed
    failed: tuple[int, ...] = ()  # attempts that failed the same way, in order
    versions: dict[str, str] = {}
    across: tuple[NodeCapture, ...] = ()  # of all nodes at one moment, ours among them
    asked: QueriedNodes | None = None  # the nodes that were asked for them
    shared: bool = False  # several nodes have it under this id: it is counted where their report is
    whole: Whole | None = None  # what all nodes together have come to, as the coordinator told it
    counted: bool = False  # among the incidents of this node
    cause: Diagnosis | None = None  # of ranks that ended badly on another node before


def say(incident: Incident, at: float, what: str) -> Incident:
    """Add one event to the timeline."""
    event = TimelineEvent(at=rfc3339(at), what=what)
    return msgspec.structs.replace(incident, timeline=(*incident.timeline, event))


def add_capture(incident: Incident, capture: NodeCapture) -> Incident:
    """Keep a capture: the first and the newest stay, which is what moved between them."""
    kept = (*incident.captures[:1], capture)
    incident = msgspec.structs.replace(incident, captures=kept)
    note = "captured all ranks"
    if moved := _moved(incident):
        note = f"captured all ranks again, {later_words(moved)}: {moved.summary}"
    return say(incident, capture.taken_at, note)


def add_gap(incident: Incident, at: float, gap: Gap) -> Incident:
    """A capture could not be had; the same reason is told once."""
    if gap in incident.gaps:
        return incident
    gaps = (*incident.gaps, gap)[-MAX_GAPS:]
    return say(msgspec.structs.replace(incident, gaps=gaps), at, f"no capture: {gap.reason}")


def is_seen(incident: Incident) -> bool:
    """Is there evidence to judge by?"""
    return bool(incident.captures or incident.across) or incident.ending is not None


def is_untold(incident: Incident) -> bool:
    """Was it held back for others, or left to another node to tell of, which never did?"""
    known = incident.counted or incident.whole is not None
    return incident.kind == "stall" and not known and not incident.across


def end(incident: Incident, state: State, at: float, what: str) -> Incident:
    """Close it as `recovered` or `ended`."""
    return say(msgspec.structs.replace(incident, state=state, over_at=at), at, what)


def add_ending(incident: Incident, ending: AttemptExit, at: float, what: str) -> Incident:
    """An attempt has failed, or the rest of the one that is told of already has ended."""
    known, attempt = incident.ending, ending.job.attempt
    if known is not None and known.job.id == ending.job.id:
        fuller = ending if len(ending.identities) >= len(known.identities) else known
        return say(msgspec.structs.replace(incident, ending=fuller), at, what)
    failed = (*incident.failed, *_attempts(incident.failed, ending))
    for missed in failed[len(incident.failed) :]:
        if missed != attempt:
            incident = say(incident, at, f"attempt {missed} has failed as well")
    again = f"attempt {attempt} failed the same way: {what}" if known is not None else what
    return say(
        msgspec.structs.replace(
            incident, ending=ending, failed=failed[-MAX_ATTEMPTS:], captures=(), state="open"
        ),
        at,
        again,
    )


def _attempts(known: tuple[int, ...], ending: AttemptExit) -> range:
    """This attempt, those before it that were too short to be seen, and those after it that the launcher tells of."""
    attempt = ending.job.attempt
    first = known[-1] + 1 if known else attempt
    pids = {one.pid for one in ending.identities}
    told = [failure.pid for failure in ending.words.failures if failure.pid is not None]
    later = 0
    for number, pid in enumerate(told):
        if pid in pids:
            later = len(told) - number - 1
    return range(max(first, attempt - MAX_ATTEMPTS), attempt + later + 1)


def judge(incident: Incident) -> Judgement:
    """What the first capture says, or the newest where the first names nobody: who is busy may be inert by then."""
    if incident.ending is not None:
        ended = _judge_ending(incident, incident.ending)
        if not incident.across:
            return ended
        return after(ended.diagnosis, diagnose(incident.across, incident.asked))
    if incident.across and (incident.whole is None or incident.whole.nodes < len(incident.across)):
        return after(incident.cause, diagnose(incident.across, incident.asked))
    found = diagnose(incident.across, incident.asked) if incident.across else _judge_here(incident)
    if incident.whole is None:
        return found
    return msgspec.structs.replace(found, diagnosis=incident.whole.diagnosis)


def add_across(
    incident: Incident, captures: tuple[NodeCapture, ...], asked: QueriedNodes, at: float, what: str
) -> Incident:
    """All nodes were captured at one moment: from now on the judgement rests on that, and on none with fewer nodes."""
    if len(captures) < len(incident.across):
        return say(incident, at, f"again: {what}; the one of {len(incident.across)} nodes stays")
    return say(msgspec.structs.replace(incident, across=captures, asked=asked), at, what)


def add_cause(incident: Incident, cause: End, at: float) -> Incident:
    """Ranks had ended badly before: what the others do follows from that."""
    known = incident.cause is not None
    incident = msgspec.structs.replace(incident, cause=cause.diagnosis)
    what = f"before, on another node: {cause.diagnosis.summary} (report {cause.incident})"
    return incident if known else say(incident, at, what)


def after(cause: Diagnosis | None, found: Judgement) -> Judgement:
    """What was found of those that live, where others ended badly before: that is the verdict, the rest is evidence."""
    if cause is None:
        return found
    told = found.diagnosis
    summary = f"{cause.summary}; since then: {told.summary}" if told.summary else cause.summary
    evidence = (*cause.evidence, *told.evidence)
    steps = (*cause.next_steps, *told.next_steps)
    whole = msgspec.structs.replace(cause, summary=summary, evidence=evidence, next_steps=steps)
    return msgspec.structs.replace(found, diagnosis=whole)


def add_whole(incident: Incident, whole: Whole, at: float) -> Incident:
    """Another node has put together what all nodes have seen."""
    what = f"all nodes together: {whole.diagnosis.summary} (report {whole.report} on {whole.node})"
    return say(msgspec.structs.replace(incident, whole=whole), at, what)


def _judge_here(incident: Incident) -> Judgement:
    if not incident.captures:
        return judge_uncaptured(_stand_in(incident), incident.sentence, _lasted(incident))
    first = diagnose(incident.captures[:1])
    if first.diagnosis.culprits or len(incident.captures) < 2:
        return first
    later = diagnose(incident.captures[-1:])
    return later if later.diagnosis.culprits else first


def _judge_ending(incident: Incident, ending: AttemptExit) -> Judgement:
    """An abnormal end, with the capture of those that outlived the first; a crash loop says how often."""
    told = judgement_of(ending, judge_exit(ending), next(iter(incident.captures[-1:]), None))
    if len(incident.failed) < 2:
        return told
    attempts = ", ".join(map(str, incident.failed[-8:]))
    summary = (
        f"{told.diagnosis.summary}; {len(incident.failed)} attempts failed this way ({attempts})"
    )
    return msgspec.structs.replace(
        told, diagnosis=msgspec.structs.replace(told.diagnosis, summary=summary)
    )


def write_report(incident: Incident, judgement: Judgement, reported_at: float) -> Report:
    """The incident as a report: all of it rests on the capture that the judgement rests on."""
    capture, timeline = _judged_by(incident, judgement), incident.timeline
    if incident.ending is not None:
        blamed = {one.rank for one in judgement.diagnosis.culprits if one.rank is not None}
        timeline = with_exits(timeline, incident.ending, blamed, incident.detected_at)
    capture = msgspec.structs.replace(capture, gaps=(*capture.gaps, *incident.gaps))
    report = build_report(
        judgement,
        incident.across or (capture,),
        kind=incident.kind,
        trigger="stall" if incident.kind == "stall" else "exit",
        state=incident.state,
        detected_at=incident.detected_at,
        reported_at=reported_at,
        stall=Stall(timeout_seconds=incident.timeout, why=incident.why),
        timeline=timeline,
        versions=capture.versions or incident.versions,
        report_id=incident.id,
        stalled_since=incident.stalled_since,
        asked=incident.asked,
        node=incident.asked.by or None if incident.asked else None,
    )
    if incident.across and not incident.captures:
        return report
    views = _views(incident, judgement)
    return msgspec.structs.replace(report, captures=views, comparison=_moved(incident))


def _judged_by(incident: Incident, judgement: Judgement) -> NodeCapture:
    """The capture that the judgement rests on: of an end that of those that lived on, else what stands for one."""
    if incident.ending is not None:
        return _of_the_end(incident, incident.ending)
    first = next(iter(incident.captures), None) or _stand_in(incident)
    return next((one for one in incident.captures if one.taken_at == judgement.taken_at), first)


def _of_the_end(incident: Incident, ending: AttemptExit) -> NodeCapture:
    if incident.captures:
        return with_gaps(incident.captures[-1], ending)
    return without_processes(ending, incident.detected_at, incident.versions)


def _stand_in(incident: Incident) -> NodeCapture:
    """What a report shows where no capture has come."""
    job = incident.job or Job(id=incident.job_id, name=incident.job_id, launcher="unknown")
    return stand_in(job, incident.detected_at, incident.state, incident.gaps)


def _lasted(incident: Incident) -> str:
    if incident.over_at is None:
        return ""
    stood = incident.over_at - (incident.stalled_since or incident.detected_at)
    known = incident.over_at - incident.detected_at
    told = f"of which {seconds(round(known, 1))} after it was told"
    return f"the stall lasted {seconds(round(stood, 1))}, {told}"


def _moved(incident: Incident) -> Comparison | None:
    if len(incident.captures) < 2:
        return None
    return comparison(incident.captures[0], incident.captures[-1])


def _views(incident: Incident, judgement: Judgement) -> tuple[CaptureView, ...]:
    """The moments; where there are two, which one the report rests on."""
    first = "when the stall was confirmed" if incident.kind == "stall" else "ranks that lived on"
    notes = [first, "once more, to see what moved"][: len(incident.captures)]
    if len(notes) > 1:
        judged = _judged_by(incident, judgement).taken_at
        at = 0 if judged == incident.captures[0].taken_at else 1
        notes[at] += " (this report rests on it)"
    return tuple(
        CaptureView(
            at=rfc3339(capture.taken_at),
            duration_seconds=capture.duration_seconds,
            ranks=len(capture.ranks),
            note=note,
        )
        for capture, note in zip(incident.captures, notes, strict=True)
    )
