"""What the nodes of a job add to what its ranks show: which did not answer, which have no rank, which one the suspects share."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from mldebug.core.model import (
    Classification,
    ClassifiedRank,
    Confidence,
    Finding,
    NodeCapture,
    QueriedNode,
    QueriedNodes,
    Role,
)
from mldebug.core.ranksets import fold_nodes, fold_ranks, shorten_ranks
from mldebug.core.redact import safe_line
from mldebug.diagnosis.classify.case import Case, ranks_text

MAX_MISSING = 65_536  # ranks that are shown one by one
MAX_LINES = 6
OF_A_PROCESS = (
    "/proc/",
    "py-spy ",
    "mldebug dump",
)  # words of commands that are about a process here
DUMP_THERE = "mldebug dump  # on a node of the job: also tells the files, locks and sockets that ranks wait for"


def missing_ranks(
    captures: Iterable[NodeCapture],
    observed: Iterable[int],
    world: int,
    queried: QueriedNodes | None,
) -> list[ClassifiedRank]:
    """Entries for ranks that run on no node of the job.

    Empty unless the scheduler named all its nodes and all processes on each could be looked at.

    `observed`: ranks that were captured. `world`: the number of ranks; more than `MAX_MISSING` are
    not listed.
    """
    if queried is None or not queried.listed_by or queried.absent or queried.hidden:
        return []
    numbers = sorted(set(range(world)) - set(observed)) if world <= MAX_MISSING else []
    empty = _without_ranks(captures, queried)
    counts = Counter(len(capture.ranks) for capture in captures)
    fits = len(counts) == 1 and len(numbers) == len(empty) * next(iter(counts))
    node = fold_nodes(empty) if fits else ""
    is_ = _missing(len(queried.nodes))
    return [ClassifiedRank(rank=number, node=node, pid=None, is_=is_) for number in numbers]


def _missing(nodes: int) -> Classification:
    where = "its node" if nodes == 1 else f"any of the {nodes} nodes of the job"
    doing = f"has no process on {where}"
    return Classification(name="missing", role=Role.MISSING, doing=doing, direct=True)


def _without_ranks(captures: Iterable[NodeCapture], queried: QueriedNodes) -> tuple[str, ...]:
    used = {capture.node for capture in captures}
    return tuple(name for name in queried.named("answered") if name not in used)


def node_evidence(case: Case, captures: tuple[NodeCapture, ...]) -> tuple[str, ...]:
    """Evidence sentences about the nodes: how many answered, which are missing, what they have in common. Empty where only this node was asked."""
    if case.queried is None:
        return ()
    return tuple(_sentences(case, captures, case.queried))


def _sentences(
    case: Case, captures: tuple[NodeCapture, ...], queried: QueriedNodes
) -> Iterator[str]:
    if len(queried.nodes) > 1:
        yield f"{len(queried.named('answered'))} of {len(queried.nodes)} nodes answered"
    for names, reason in by_reason(queried.nodes)[:MAX_LINES]:
        yield f"no capture of {names}: {reason}"
    place = _place(queried, queried.absent)
    if len(queried.absent) > 1 and place and any(one.place != place for one in queried.nodes):
        yield f"all nodes without a capture ({fold_nodes(queried.absent)}) are in {place}"
    if empty := _without_ranks(captures, queried):
        yield f"{fold_nodes(empty)} answered, and no rank of the job runs there"
    if case.elsewhere:
        folded = shorten_ranks(fold_ranks(case.elsewhere), 200)
        count = len(case.elsewhere)
        yield f"not seen: rank{'s' if count > 1 else ''} {folded} ({count:,} of {case.job.world_size:,})"
    yield from _shared(case)


def _shared(case: Case) -> Iterator[str]:
    """What all suspects, and nobody else, have in common: a node, or where their nodes stand."""
    nodes = {rank.node for rank in case.suspects} - {""}
    if not nodes or len(case.suspects) < 2 or not case.waiting:
        return
    run, there = f"run on {fold_nodes(nodes)}", nodes
    if len(nodes) > 1:
        place = _place(case.queried, nodes)
        run, there = f"{run} in {place}", _nodes_at(case.queried, place)
        if not place or {rank.node for rank in case.ranks} <= there:
            return
    of_it = [rank for rank in case.ranks if rank.node in there]
    all_of_it = "all ranks" if len(of_it) == len(case.suspects) else "not all ranks"
    who = ranks_text(rank.rank for rank in case.suspects).split(" ", 1)[1]
    yield f"all ranks that do not wait ({who}) {run}: they are {all_of_it} of it"


def _place(queried: QueriedNodes | None, nodes: Collection[str]) -> str:
    """The label that all of these nodes have; "" where they have none, or several."""
    labels = {one.place for one in queried.nodes if one.name in nodes} if queried else set()
    return labels.pop() if len(labels) == 1 else ""


def _nodes_at(queried: QueriedNodes | None, place: str) -> set[str]:
    return {one.name for one in queried.nodes if one.place == place} if queried else set()


def next_steps(case: Case, finding: Finding) -> tuple[str, ...]:
    """What to type to look closer. The processes of dumps that somebody brought are on another machine, or over: there it is said
    which dump would tell more.
    """
    if not case.recorded:
        return (*where_to_type(case, finding), *finding.next_steps)
    kept = (step for step in finding.next_steps if not any(word in step for word in OF_A_PROCESS))
    return (*kept, *_dumps_to_take(case, finding), DUMP_THERE)


def _dumps_to_take(case: Case, finding: Finding) -> Iterator[str]:
    native = any(rank.capture is not None and rank.capture.process.native for rank in case.ranks)
    if not native and finding.confidence is Confidence.LOW:
        yield "py-spy dump --native --pid PID > rankN.txt  # of each rank: what its native code waits for; pauses it for a moment"


def where_to_type(case: Case, finding: Finding) -> tuple[str, ...]:
    """The command `ssh NODE`, to be put before other next steps about a process on that node; empty where only this node
    was asked, or no process is named.
    """
    nodes = {one.node for one in finding.culprits if one.pid is not None} - {""}
    if case.queried is None or not nodes:
        return ()
    return (f"ssh {min(nodes)}  # the next lines are for that node",)


def not_all_present(case: Case, queried: QueriedNodes) -> tuple[str, tuple[str, ...]]:
    """Why nobody is named, and the next steps, where all captured ranks wait for ranks of which there is no capture."""
    count = len(case.elsewhere)
    waits = f"all {len(case.ranks)} ranks seen wait ({case.victims()})"
    if queried.absent:
        why = f"{count} more could not be looked at: there is no capture of {fold_nodes(queried.absent)}"
        return f"{waits}; {why}", (f"mldebug dump  # on {queried.absent[0]}",)
    where = "any node of the job" if queried.listed_by else "any of the nodes that were named"
    step = "mldebug dump --hosts …  # with all nodes of the job"
    return f"{waits}; {count} more have no process on {where}", (step,)


def by_reason(nodes: Iterable[QueriedNode]) -> list[tuple[str, str]]:
    """Return (node names folded as `node[017-018]`, why there is no capture of them), most nodes first. Nodes that answered
    are left out.
    """
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node.state != "answered":
            found.setdefault(safe_line(node.reason, 300) or node.state, []).append(node.name)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [(fold_nodes(names), reason) for reason, names in ordered]
