"""Build a report from a judgement and its captures: pure, data in and data out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

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
    JobView,
    NodeView,
    Report,
    Stall,
    TimelineEvent,
)
from mldebug.core.text import rfc3339
from mldebug.incidents.report.hardware import gpu_views, hardware_lines, xid_catalogue
from mldebug.incidents.report.ranks import rank_views, shorten_stack
from mldebug.incidents.report.sanitize import tidy_report
from mldebug.jobs.heartbeat import RECORD

MAX_DEPTH = 150  # of the tree: encoders and browsers recurse too

_T = TypeVar("_T")

Kind = Literal["stall", "abnormal_end", "slowdown", "manual"]
Trigger = Literal["stall", "exit", "slowdown", "manual", "api", "alert"]
State = Literal["open", "recovered", "ended"]


def build_report(
    judgement: Judgement,
    captures: Sequence[NodeCapture],
    *,
    kind: Kind,
    trigger: Trigger,
    state: State = "open",
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
    """Build a report.

    `captures`: at least one, of one job; of several by one node the latest describes the node, and all are listed. `taken`:
    the captures to list, where the judgement rests on some of them. `queried`: the nodes that were asked for captures, if
    more than this one. `node`: the one that reports (default: that of the first capture). Times are unix seconds.
    """
    queried = queried or QueriedNodes()
    job = _job(captures, queried, [one.capture for one in judgement.ranks if one.capture])
    hardware = hardware_lines(captures, judgement.diagnosis)
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
