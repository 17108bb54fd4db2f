"""Build a report from a judgement and its captures: pure, data in and data out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from mldebug.core.model import (
    HookState,
    Judgement,
    NodeCapture,
    QueriedNode,
    QueriedNodes,
    RankCapture,
    TreeNode,
)
from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import safe_line
from mldebug.core.report_model import (
    REPORT_SCHEMA,
    CaptureView,
    GapView,
    IncidentState,
    JobView,
    NodeView,
    Report,
    ReportKind,
    ReportTrigger,
    Stall,
    TimelineEvent,
)
from mldebug.core.text import rfc3339
from mldebug.diagnosis.exits.judgement import with_gaps, without_processes
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.timeline import with_exits
from mldebug.hardware.ports.neighbours import unlike_ports
from mldebug.incidents.incident import Incident, changes_between_captures
from mldebug.incidents.report.hardware import gpu_views, hardware_lines, xid_catalogue
from mldebug.incidents.report.ranks import rank_views, shorten_stack
from mldebug.incidents.report.sanitize import tidy_report
from mldebug.incidents.uncaptured import stand_in
from mldebug.jobs.heartbeat import RECORD

MAX_DEPTH = 150  # of the tree: encoders and browsers recurse too

_T = TypeVar("_T")

TRIGGERS: dict[str, ReportTrigger] = {
    "stall": "stall",
    "abnormal_end": "exit",
    "slowdown": "slowdown",
}


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
    capture = replace(capture, gaps=(*capture.gaps, *incident.gaps))
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
    report = replace(report, goodput=incident.goodput)
    if incident.node_captures and not incident.captures:
        return report
    views = _views(incident, judgement)
    return replace(report, captures=views, comparison=changes_between_captures(incident))


def build_report(
    judgement: Judgement,
    captures: Sequence[NodeCapture],
    *,
    kind: ReportKind,
    trigger: ReportTrigger,
    state: IncidentState = "open",
    detected_at: float,
    reported_at: float,
    stall: Stall,
    timeline: Iterable[TimelineEvent] = (),
    versions: Mapping[str, str],
    report_id: str | None = None,
    stalled_since: float | None = None,
    node: str | None = None,
    taken: Sequence[NodeCapture] = (),
    queried: QueriedNodes | None = None,
) -> Report:
    """Build a report from a judgement and the captures that it is about.

    `captures`: at least one, of one job; of several by one node the latest describes the node, and all are listed. `taken`:
    the captures to list, where the judgement rests on some of them. `queried`: the nodes that were asked for captures, if
    more than this one. `node`: the one that reports (default: that of the first capture). Times are unix seconds.
    """
    queried = queried or QueriedNodes()
    job = _job(captures, queried, [one.capture for one in judgement.ranks if one.capture])
    hardware = (*hardware_lines(captures, judgement.diagnosis), *unlike_ports(captures))
    report = Report(
        schema=REPORT_SCHEMA,
        id=report_id or make_id(detected_at, job.id),
        node=captures[0].node if node is None else node,
        versions=_versions(captures, versions),
        job=job,
        kind=kind,
        trigger=trigger,
        state=state,
        stalled_since=None if stalled_since is None else rfc3339(stalled_since),
        detected_at=rfc3339(detected_at),
        reported_at=rfc3339(reported_at),
        stall=stall,
        timeline=tuple(timeline),
        captures=tuple(_moments(taken or captures)),
        diagnosis=judgement.diagnosis,
        groups=tuple(replace(one, frames=shorten_stack(one.frames)) for one in judgement.groups),
        tree=tuple(_prune(node, MAX_DEPTH) for node in judgement.tree),
        ranks=rank_views(judgement),
        nodes=tuple(_nodes(captures, queried)),
        remarks=tuple(_unique(mark.message for each in captures for mark in each.remarks)),
        gaps=tuple(_gaps(captures)),
        hardware=hardware,
        gpus=gpu_views(captures),
        xid_catalogue=xid_catalogue(captures, judgement.diagnosis, hardware),
    )
    return tidy_report(report)


def make_id(at: float, job_id: str) -> str:
    """A report's id, `20261121T055041Z-<job id>`, which sorts by time and is a safe file name.

    `at`: unix time.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", job_id).strip("-.")[:64]
    return f"{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%SZ}-{safe or 'job'}"


# --- the job and its nodes -----------------------------------------------------------------------


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


def _job(
    captures: Sequence[NodeCapture], queried: QueriedNodes, ranks: Sequence[RankCapture]
) -> JobView:
    job = captures[0].job
    hooks = [one.hook for one in ranks if one.hook is not None]
    lived = any(one.process.state is not None for one in ranks)
    traced = any(one.trace is not None for one in ranks)  # so it is no untouched job
    names = [name for each in captures for name in (*each.job.nodes, each.node)]
    names += [node.name for node in queried.nodes] if queried.listed_by else queried.absent
    return JobView(
        id=job.id,
        name=job.name,
        attempt=job.attempt,
        world_size=job.world_size,
        launcher=job.launcher,
        nodes=tuple(_unique(names)),
        user=job.user,
        started_at=rfc3339(job.started_at) if job.started_at else "",
        step=_step(captures, hooks),
        hooked=len(hooks) if hooks or (lived and not traced and not _unread(captures)) else None,
    )


def _unread(captures: Iterable[NodeCapture]) -> bool:
    """Whether any rank has a hook whose record could not be read: such a job is not an untouched one."""
    return any(gap.what == RECORD for each in captures for gap in each.gaps)


def _step(captures: Iterable[NodeCapture], hooks: Iterable[HookState]) -> int | None:
    """The step that the watch knew, else that of the furthest rank by its hook; None where neither is known."""
    watched = [one.step for one in captures if one.step is not None]
    hooked = [one.step for one in hooks if one.step is not None]
    return max(watched or hooked, default=None)


def _latest(captures: Iterable[NodeCapture]) -> list[NodeCapture]:
    latest: dict[str, NodeCapture] = {}
    for capture in sorted(captures, key=lambda each: each.taken_at):
        latest[capture.node] = capture
    return [latest[name] for name in sorted(latest)]


def _nodes(captures: Sequence[NodeCapture], queried: QueriedNodes) -> Iterator[NodeView]:
    """The nodes that were asked for captures, else those that sent one."""
    by_node = {capture.node: capture for capture in _latest(captures)}
    others = {node.name: node for node in queried.nodes if node.name not in by_node}
    for name in sorted({*by_node, *others}):
        yield _node_view(by_node[name]) if name in by_node else _silent_view(others[name])


def _silent_view(node: QueriedNode) -> NodeView:
    return NodeView(
        node=node.name,
        ranks="",
        taken_at="",
        duration_seconds=0.0,
        state=node.state,
        reason=safe_line(node.reason, 300),
        last_seen="" if node.last_seen is None else rfc3339(node.last_seen),
    )


def _node_view(capture: NodeCapture) -> NodeView:
    return NodeView(
        node=capture.node,
        ranks=fold_ranks(one.identity.rank for one in capture.ranks),
        taken_at=rfc3339(capture.taken_at),
        duration_seconds=capture.duration_seconds,
    )


def _moments(captures: Iterable[NodeCapture]) -> Iterator[CaptureView]:
    """A moment ends where one of its nodes comes again."""
    moment: dict[str, NodeCapture] = {}
    for capture in sorted(captures, key=lambda each: each.taken_at):
        if capture.node in moment:
            yield _moment(list(moment.values()))
            moment = {}
        moment[capture.node] = capture
    if moment:
        yield _moment(list(moment.values()))


def _moment(captures: list[NodeCapture]) -> CaptureView:
    return CaptureView(
        at=rfc3339(captures[0].taken_at),
        duration_seconds=max(each.duration_seconds for each in captures),
        ranks=sum(len(each.ranks) for each in captures),
        note=captures[0].node if len(captures) == 1 else f"{len(captures)} nodes",
    )


def _versions(captures: Iterable[NodeCapture], versions: Mapping[str, str]) -> dict[str, str]:
    found = {name: text for each in captures for name, text in each.versions.items()}
    return dict(sorted((found | dict(versions)).items()))


def _gaps(captures: Iterable[NodeCapture]) -> Iterator[GapView]:
    for gap in _unique(gap for capture in captures for gap in capture.gaps):
        yield msgspec.convert(gap, GapView, from_attributes=True)


# --- bounds --------------------------------------------------------------------------------------


def _prune(node: TreeNode, depth: int) -> TreeNode:
    if depth <= 1 and node.children:
        rest = TreeNode(frame="… deeper frames left out", ranks=node.ranks, count=node.count)
        return replace(node, children=(rest,))
    return replace(node, children=tuple(_prune(child, depth - 1) for child in node.children))


def _unique(items: Iterable[_T]) -> Iterator[_T]:
    return iter(dict.fromkeys(items))
