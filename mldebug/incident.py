"""An incident while it lives: opened by a decision, fed by captures, ended by recovery or the end of the job. Pure."""

from collections.abc import Sequence

import msgspec

from mldebug.diagnosis import diagnose
from mldebug.model import CaptureView, Judgement, NodeCapture, Noun, Report, Stall, TimelineEvent
from mldebug.report.build import State, build_report, rfc3339


class Incident(Noun, frozen=True, kw_only=True):
    """One stall of one run. Times are unix seconds."""

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


def judge(incident: Incident) -> Judgement:
    """What the first capture says, or the newest where the first names nobody: who is busy may be inert by then."""
    first = diagnose(incident.captures[:1])
    if first.diagnosis.culprits or len(incident.captures) < 2:
        return first
    later = diagnose(incident.captures[-1:])
    return later if later.diagnosis.culprits else first


def write_report(incident: Incident, judgement: Judgement, reported_at: float) -> Report:
    """The incident as a report; needs at least one capture."""
    report = build_report(
        judgement,
        incident.captures[:1],
        kind="stall",
        trigger="stall",
        state=incident.state,
        detected_at=incident.detected_at,
        reported_at=reported_at,
        stall=Stall(timeout_seconds=incident.timeout, why=incident.why),
        timeline=incident.timeline,
        versions=incident.captures[0].versions,
        report_id=incident.id,
        stalled_since=incident.stalled_since,
    )
    return msgspec.structs.replace(report, captures=_views(incident.captures))


def _views(captures: Sequence[NodeCapture]) -> tuple[CaptureView, ...]:
    notes = ("when the stall was confirmed", "later: what moved")
    return tuple(
        CaptureView(
            at=rfc3339(capture.taken_at),
            duration_seconds=capture.duration_seconds,
            ranks=len(capture.ranks),
            note=note,
        )
        for capture, note in zip(captures, notes, strict=False)
    )
