"""The report of an incident, made of its evidence and its judgement.

Pure.
"""

import msgspec

from mldebug.core.model import Judgement, NodeCapture
from mldebug.core.report_model import CaptureView, Report, Stall
from mldebug.core.text import rfc3339
from mldebug.diagnosis.exits.judgement import with_gaps, without_processes
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.timeline import with_exits
from mldebug.incidents.incident import Incident, changes_between_captures
from mldebug.incidents.report.build import Trigger, build_report
from mldebug.incidents.uncaptured import stand_in

TRIGGERS: dict[str, Trigger] = {"stall": "stall", "abnormal_end": "exit", "slowdown": "slowdown"}


def write_report(incident: Incident, judgement: Judgement, reported_at: float) -> Report:
    """Build the incident's report, on the capture that the judgement rests on.

    `reported_at`: unix time.
    """
    capture = _judged_by(incident, judgement)
    timeline = tuple(
        sorted(incident.timeline, key=lambda one: one.at)
    )  # a capture is noted later than it was taken
    if incident.exit is not None:
        blamed = {one.rank for one in judgement.diagnosis.culprits if one.rank is not None}
        timeline = with_exits(timeline, incident.exit, blamed, incident.detected_at)
    capture = msgspec.structs.replace(capture, gaps=(*capture.gaps, *incident.gaps))
    report = build_report(
        judgement,
        incident.node_captures or (capture,),
        kind=incident.kind,
        trigger=TRIGGERS[incident.kind],
        state=incident.state,
        detected_at=incident.detected_at,
        reported_at=reported_at,
        stall=Stall(
            timeout_seconds=incident.timeout,
            why=incident.why,
            collective_timeout_seconds=incident.collective_timeout,
        ),
        timeline=timeline,
        versions=capture.versions or incident.versions,
        report_id=incident.id,
        stalled_since=incident.stalled_since,
        queried=incident.queried,
        node=incident.queried.by or None if incident.queried else None,
    )
    report = msgspec.structs.replace(report, goodput=incident.goodput)
    if incident.node_captures and not incident.captures:
        return report
    views = _views(incident, judgement)
    return msgspec.structs.replace(
        report, captures=views, comparison=changes_between_captures(incident)
    )


def _judged_by(incident: Incident, judgement: Judgement) -> NodeCapture:
    """The capture that the judgement rests on: of an end that of those that lived on, else what stands for one."""
    if incident.exit is not None:
        return _capture_of_exit(incident, incident.exit)
    first = next(iter(incident.captures), None) or stand_in(incident)
    return next((one for one in incident.captures if one.taken_at == judgement.taken_at), first)


def _capture_of_exit(incident: Incident, attempt: AttemptExit) -> NodeCapture:
    if incident.captures:
        return with_gaps(incident.captures[-1], attempt)
    return without_processes(attempt, incident.detected_at, incident.versions)


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
