"""Merge the captures of many nodes into whole runs, and say which nodes did not answer or gave captures that do not fit.

The order of the nodes changes nothing. A node has the name under which it was asked, whatever it
calls itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from mldebug.capture.validation import wrong_numbers, wrong_ranks
from mldebug.cluster.run_identity import RunKey, run_id, run_key
from mldebug.cluster.wire import NodeReply
from mldebug.core.files import without_collector
from mldebug.core.model import (
    CAPTURE_SCHEMA,
    Gap,
    Job,
    NodeCapture,
    QueriedNode,
    QueriedNodes,
    RankCapture,
    RankIdentity,
    Remark,
)
from mldebug.core.ranksets import fold_nodes, fold_ranks, shorten_ranks, unfold_nodes
from mldebug.diagnosis.classify.nodes import by_reason

Topology = Mapping[str, str]
"""Label -> its nodes, folded: `{"rack07": "node[001-016]"}`."""

MAX_REASONS = 64  # different reasons why nodes have sent nothing


class MergedRun(NamedTuple):
    """One run on all its nodes: the input of `mldebug.diagnosis.diagnose.diagnose`. `captures` is never empty."""

    captures: tuple[NodeCapture, ...]  # by their lowest rank
    queried: QueriedNodes


class MergedRuns(NamedTuple):
    """All runs that were found on the nodes. `queried`: every node that was asked, with or without ranks."""

    runs: tuple[MergedRun, ...]
    queried: QueriedNodes


class NodeReplies(NamedTuple):
    """The replies of nodes that were asked for captures, by node name, and the nodes that gave none, with the reason."""

    replies: Mapping[str, NodeReply]
    failed: Iterable[QueriedNode] = ()


class _Claim(NamedTuple):
    """One capture under its node's name."""

    name: str
    machine: str
    capture: NodeCapture


@without_collector()
def merge(answers: NodeReplies, listed_by: str = "") -> MergedRuns:
    """Group the captures by run, the run with most ranks first.

    Each run lists every node that was asked; captures that do not fit are left out with a reason.
    """
    runs: dict[RunKey, list[_Claim]] = {}
    refused: dict[str, str] = {}
    for name, reply in sorted(answers.replies.items()):
        for capture in reply.captures:
            if wrong := _wrong(capture):
                refused[name] = wrong
            else:
                own = renamed(capture, name)
                runs.setdefault(run_key(own), []).append(_Claim(name, reply.machine, own))
    found = []
    for key, claims in runs.items():
        reasons = dict(refused)
        if fitting := _fitting(claims, reasons):
            found.append(_run(key, fitting, answers, reasons, listed_by))
        else:
            refused |= reasons
    found.sort(key=lambda run: (-_size(run), run.captures[0].job.id))
    return MergedRuns(tuple(found), _queried(answers, refused, set(), listed_by))


def _size(run: MergedRun) -> int:
    return sum(len(capture.ranks) for capture in run.captures)


def renamed(capture: NodeCapture, name: str) -> NodeCapture:
    """The capture with its node's name replaced everywhere by `name`, under which the node was asked."""
    job = msgspec.structs.replace(
        capture.job, nodes=(name,), ranks=tuple(_on(one, name) for one in capture.job.ranks)
    )
    ranks = tuple(
        msgspec.structs.replace(rank, identity=_on(rank.identity, name)) for rank in capture.ranks
    )
    faults = tuple(msgspec.structs.replace(fault, node=name) for fault in capture.faults)
    return msgspec.structs.replace(capture, node=name, job=job, ranks=ranks, faults=faults)


def _on(identity: RankIdentity, name: str) -> RankIdentity:
    return msgspec.structs.replace(identity, node=name)


# --- one run ---------------------------------------------------------------------------------------


def _fitting(claims: list[_Claim], refused: dict[str, str]) -> list[_Claim]:
    """Those that may all be true; `refused` learns why the others are not used."""
    kept = _of_one_shape(claims, refused)
    return _once_each_rank(_once_each_machine(kept), refused)


def _run(
    key: RunKey,
    claims: list[_Claim],
    answers: NodeReplies,
    refused: Mapping[str, str],
    listed_by: str,
) -> MergedRun:
    captures = _joined(key, sorted(claims, key=lambda one: (_lowest(one.capture), one.name)))
    queried = _queried(answers, refused, {claim.name for claim in claims}, listed_by)
    queried = msgspec.structs.replace(queried, hidden=_hiding(answers, captures[0].job.uid))
    first = captures[0]
    first = msgspec.structs.replace(
        first,
        remarks=(*first.remarks, *_refusals(queried)),
        gaps=(*_gaps(queried), *first.gaps),
    )
    return MergedRun((first, *captures[1:]), queried)


def _lowest(capture: NodeCapture) -> int:
    return min((rank.identity.rank for rank in capture.ranks), default=0)


def _wrong(capture: NodeCapture) -> str:
    """Why a capture cannot be, in words that follow `its answer`."""
    if capture.schema != CAPTURE_SCHEMA:
        return f"is of schema {capture.schema[:40]!r}, and this mldebug reads {CAPTURE_SCHEMA}"
    ranks = [rank.identity.rank for rank in capture.ranks]
    if not ranks and (capture.launcher is None or capture.job.waits is None):
        return "shows no rank"
    if len(set(ranks)) < len(ranks):
        return f"shows {_twice(ranks)} twice"
    known = sorted(rank.rank for rank in capture.job.ranks)
    if known != sorted(ranks):
        return f"says ranks {_few(known)} and shows {_few(ranks)}"
    lost = [one.rank for one in capture.job.lost]
    return wrong_ranks([*ranks, *lost], capture.job.world_size) or wrong_numbers(capture)


def _few(ranks: Iterable[int]) -> str:
    return shorten_ranks(fold_ranks(ranks)) or "none"


def _twice(ranks: Iterable[int]) -> str:
    return f"rank {min(rank for rank, count in Counter(ranks).items() if count > 1)}"


# --- who fits --------------------------------------------------------------------------------------


def _of_one_shape(claims: list[_Claim], refused: dict[str, str]) -> list[_Claim]:
    """Those that agree with most nodes on the attempt and the number of ranks; of a tie, those that together show all ranks, then
    most ranks, then the newest.

    By nodes: one that lies may show as many ranks as it likes.
    """
    votes = Counter(_shape(one.capture.job) for one in claims)
    ranks: Counter[tuple[int, int]] = Counter()
    for claim in claims:
        ranks[_shape(claim.capture.job)] += len(claim.capture.ranks)
    winner = max(
        votes, key=lambda shape: (votes[shape], ranks[shape] == shape[1], ranks[shape], shape)
    )
    kept = []
    for one in claims:
        if _shape(one.capture.job) == winner:
            kept.append(one)
        else:
            refused[one.name] = _other_shape(one.capture.job, *winner)
    return kept


def _shape(job: Job) -> tuple[int, int]:
    return job.attempt, job.world_size


def _other_shape(job: Job, attempt: int, world: int) -> str:
    if job.world_size != world:
        return f"says a world of {job.world_size} ranks where the others say {world}"
    return f"shows attempt {job.attempt} of the run where the others are in {attempt}"


def _once_each_machine(claims: list[_Claim]) -> list[_Claim]:
    """Two names of one machine are one node: the first of the names stays."""
    kept: dict[object, _Claim] = {}
    for one in sorted(claims, key=lambda one: one.name):
        place = (one.machine, _processes(one.capture)) if one.machine else one.name
        kept.setdefault(place, one)
    return list(kept.values())


def _processes(capture: NodeCapture) -> tuple[tuple[int, int, int], ...]:
    return tuple((rank.rank, rank.pid, rank.start_ticks) for rank in capture.job.ranks)


def _once_each_rank(claims: list[_Claim], refused: dict[str, str]) -> list[_Claim]:
    """Where two nodes show one rank, nobody knows which lies: neither is used."""
    holders: dict[int, list[str]] = {}
    for claim in claims:
        for rank in claim.capture.ranks:
            holders.setdefault(rank.identity.rank, []).append(claim.name)
    doubled = {rank: names for rank, names in holders.items() if len(names) > 1}
    for number, names in sorted(doubled.items()):
        for name in names:
            others = fold_nodes(other for other in names if other != name) or "it"
            refused.setdefault(name, f"shows rank {number}, which {others} shows too")
    liars = {name for names in doubled.values() for name in names}
    return [one for one in claims if one.name not in liars]


# --- what is told of the nodes ---------------------------------------------------------------------


def _queried(
    answers: NodeReplies, refused: Mapping[str, str], used: set[str], listed_by: str
) -> QueriedNodes:
    nodes = {name: QueriedNode(name=name) for name in answers.replies}
    for name, reason in refused.items():
        if name not in used:  # it may run another job as well
            nodes[name] = QueriedNode(name=name, state="refused", reason=f"its answer {reason}")
    nodes |= {node.name: node for node in answers.failed}
    return QueriedNodes(nodes=tuple(nodes[name] for name in sorted(nodes)), listed_by=listed_by)


def _hiding(answers: NodeReplies, uid: int) -> tuple[str, ...]:
    """Nodes on which a rank may have been overlooked: an agent that runs as the job's user sees all of the user's processes."""
    found = answers.replies.items()
    return tuple(sorted(name for name, reply in found if reply.hidden and reply.uid != uid))


def _gaps(queried: QueriedNodes) -> Iterator[Gap]:
    for names, reason in by_reason(queried.nodes)[:MAX_REASONS]:
        yield Gap(what=f"the capture of {names}", reason=reason)


def _refusals(queried: QueriedNodes) -> Iterator[Remark]:
    refused = (node for node in queried.nodes if node.state == "refused")
    for names, reason in by_reason(refused)[:MAX_REASONS]:
        yield Remark(kind="node_refused", message=f"{names} is not believed: {reason}")


# --- one job ---------------------------------------------------------------------------------------


def _joined(key: RunKey, claims: list[_Claim]) -> list[NodeCapture]:
    """All under one id; a rank that lives on one node is not lost on another."""
    living = {rank.identity.rank for claim in claims for rank in claim.capture.ranks}
    return [_as_one(one.capture, run_id(key), living) for one in claims]


def _as_one(capture: NodeCapture, job_id: str, living: set[int]) -> NodeCapture:
    lost = tuple(one for one in capture.job.lost if one.rank not in living)
    job = msgspec.structs.replace(capture.job, id=job_id, lost=lost)
    ranks: tuple[RankCapture, ...] = tuple(sorted(capture.ranks, key=lambda r: r.identity.rank))
    return msgspec.structs.replace(capture, job=job, ranks=ranks)


def placed(queried: QueriedNodes, topology: Topology | None) -> QueriedNodes:
    """The nodes, each with the label (rack, switch) that the topology gives for its full or short name.

    Raises UsageError for an invalid node list in the topology.
    """
    if not topology:
        return queried
    places: dict[str, str] = {}
    for label, nodes in topology.items():
        for name in unfold_nodes(nodes):
            places.setdefault(name, label)
    names = ((node, node.name.partition(".")[0]) for node in queried.nodes)
    labelled = (
        msgspec.structs.replace(one, place=places.get(one.name) or places.get(short, ""))
        for one, short in names
    )
    return msgspec.structs.replace(queried, nodes=tuple(labelled))
