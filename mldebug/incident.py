"""An incident while it lives: opened by a decision or by the end of a rank, fed by captures, ended by recovery or the
end of the job. Pure.
"""

from typing import Literal

import msgspec

from mldebug.diagnosis import diagnose
from mldebug.endings.facts import Ending
from mldebug.endings.judge import judge_ending
from mldebug.endings.timeline import with_exits
from mldebug.endings.written import judgement_of, with_gaps, without_processes
from mldebug.model import Judgement, NodeCapture, Noun
from mldebug.report.build import State, build_report, rfc3339
from mldebug.reportmodel import (
    CaptureView,
    Report,
    Stall,
    TimelineEvent,
)

MAX_ATTEMPTS = 1000


class Incident(Noun, frozen=True, kw_only=True):
    """One stall or one abnormal end of one run. Times are unix seconds."""

    id: str
    key: str  # run, attempt, last step: two agents that see the same stall have the same
    job_id: str
    detected_at: float
    stalled_since: float | None = None
    timeout: float = 0.0
    why: str = ""
    sentence: str = ""
    state: State = "open"
    timeline: tuple[TimelineEvent, ...] = ()
    captures: tuple[NodeCapture, ...] = ()
    kind: Literal["stall", "abnormal_end"] = "stall"
    ending: Ending | None = None  # of the newest attempt that failed
    failed: tuple[int, ...] = ()  # attempts that failed the same way, in order
    versions: dict[str, str] = {}


def say(incident: Incident, at: float, what: str) -> Incident:
    """Add one event to the timeline."""
    event = TimelineEvent(at=rfc3339(at), what=what)
    return msgspec.structs.replace(incident, timeline=(*incident.timeline, event))


def add_capture(incident: Incident, capture: NodeCapture) -> Incident:
    """Keep a capture: the first and the newest stay, which is what moved between them."""
    kept = (*incident.captures[:1], capture)
    incident = msgspec.structs.replace(incident, captures=kept)
    note = "captured all ranks" if len(kept) == 1 else "captured all ranks again"
    return say(incident, capture.taken_at, note)


def end(incident: Incident, state: State, at: float, what: str) -> Incident:
    """Close it as `recovered` or `ended`."""
    return say(msgspec.structs.replace(incident, state=state), at, what)


def add_ending(incident: Incident, ending: Ending, at: float, what: str) -> Incident:
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


def _attempts(known: tuple[int, ...], ending: Ending) -> range:
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
        return _judge_ending(incident, incident.ending)
    first = diagnose(incident.captures[:1])
    if first.diagnosis.culprits or len(incident.captures) < 2:
        return first
    later = diagnose(incident.captures[-1:])
    return later if later.diagnosis.culprits else first


def _judge_ending(incident: Incident, ending: Ending) -> Judgement:
    """An abnormal end, with the capture of those that outlived the first; a crash loop says how often."""
    told = judgement_of(ending, judge_ending(ending), next(iter(incident.captures[-1:]), None))
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
    """The incident as a report; needs at least one capture, or an ending."""
    captures, timeline = incident.captures[:1], incident.timeline
    if incident.ending is not None:
        captures = (_of_the_end(incident, incident.ending),)
        blamed = {one.rank for one in judgement.diagnosis.culprits if one.rank is not None}
        timeline = with_exits(timeline, incident.ending, blamed, incident.detected_at)
    report = build_report(
        judgement,
        captures,
        kind=incident.kind,
        trigger="stall" if incident.kind == "stall" else "exit",
        state=incident.state,
        detected_at=incident.detected_at,
        reported_at=reported_at,
        stall=Stall(timeout_seconds=incident.timeout, why=incident.why),
        timeline=timeline,
        versions=captures[0].versions,
        report_id=incident.id,
        stalled_since=incident.stalled_since,
    )
    return msgspec.structs.replace(report, captures=_views(incident))


def _of_the_end(incident: Incident, ending: Ending) -> NodeCapture:
    """The capture of those that lived on, else what stands for one."""
    if incident.captures:
        return with_gaps(incident.captures[0], ending)
    return without_processes(ending, incident.detected_at, incident.versions)


def _views(incident: Incident) -> tuple[CaptureView, ...]:
    first = "when the stall was confirmed" if incident.kind == "stall" else "ranks that lived on"
    return tuple(
        CaptureView(
            at=rfc3339(capture.taken_at),
            duration_seconds=capture.duration_seconds,
            ranks=len(capture.ranks),
            note=note,
        )
        for capture, note in zip(incident.captures, (first, "later: what moved"), strict=False)
    )
