"""A launcher that has started no rank: which nodes its run waits for, in words and as a judgement. Pure.

| the launcher stands | the run |
|---|---|
| in a rendezvous, however it is made | waits for nodes; the missing node is named where only one can be |
| in the barrier at its exit | is over on this node: no incident |
| anywhere else | has started no rank, which the stack explains |
"""

from collections.abc import Iterable

import msgspec

from mldebug.capture.frames import labels, principal, python_frames
from mldebug.core.errors import UsageError
from mldebug.core.model import (
    Confidence,
    Culprit,
    Diagnosis,
    Frame,
    Job,
    Judgement,
    NodeCapture,
    ProcessCapture,
    Verdict,
)
from mldebug.core.ranksets import fold_nodes, unfold_nodes
from mldebug.core.units import duration_words

MAX_LISTED = 4096  # nodes in a scheduler's list
SHOWN = 8  # frames of the launcher
MEETING = frozenset(
    (
        *("next_rendezvous", "_rendezvous", "_assign_worker_ranks", "_share_and_gather"),
        *("_create_tcp_store", "create_backend", "get_rendezvous_handler", "_initialize_workers"),
    )
)
"""Functions of torch's elastic agent in which it waits for the launchers of other nodes."""
EXIT_BARRIER = "_exit_barrier"
ELASTIC = "distributed/"


def wait_words(job: Job, now: float) -> str:
    """What the job's launcher waits for: `waits for nodes, 1 of 2 present since 4 min`, with the nodes' names where agents
    count them; "" for other jobs. `now`: unix seconds.
    """
    wait = job.waits
    if wait is None:
        return ""
    since = duration_words(int(now - job.started_at))
    names = f" ({_folded(wait.present)})" if wait.present else ""
    words = f"waits for nodes, {_count(job)} of {wait.nodes} present{names} since {since}"
    if missing := missing_nodes(job):
        return f"{words}; missing: {_folded(missing)}"
    if not wait.present and wait.nodes > wait.here + 1:
        return f"{words}; those of other nodes are not counted here"
    return words


def missing_nodes(job: Job) -> tuple[str, ...]:
    """The nodes of the run without a launcher, in the scheduler's order; empty where that is not known."""
    wait = job.waits
    if wait is None or not (wait.present or wait.nodes == wait.here + 1):
        return ()
    listed = _listed(job.node_list)
    here = {_short(name) for name in (wait.present or job.nodes)}
    missing = tuple(name for name in listed if _short(name) not in here)
    fits = len(listed) == wait.nodes and len(missing) == wait.nodes - _count(job)
    return missing if fits else ()


def in_exit_barrier(launcher: ProcessCapture) -> bool:
    """Whether the launcher has ended its ranks and waits for those of other nodes to end."""
    return any(frame.function == EXIT_BARRIER for frame in _frames(launcher))


def judge_node_wait(captures: Iterable[NodeCapture]) -> Judgement | None:
    """The judgement of a job whose launchers have started no rank; None for a job that does not wait for nodes, or has ranks."""
    captures = tuple(captures)
    first = captures[0]
    if first.job.waits is None or any(capture.ranks for capture in captures):
        return None
    if len(captures) > 1:
        nodes = tuple(capture.node for capture in captures)
        wait = msgspec.structs.replace(first.job.waits, present=nodes)
        job = msgspec.structs.replace(first.job, waits=wait, nodes=nodes)
        first = msgspec.structs.replace(first, job=job)
    launcher = first.launcher
    meets = launcher is not None and _meets(_frames(launcher))
    over = launcher is not None and in_exit_barrier(launcher)
    missing = missing_nodes(first.job) if meets or launcher is None else ()
    culprits = tuple(_culprit(name) for name in missing) if len(missing) == 1 else ()
    return Judgement(
        diagnosis=Diagnosis(
            verdict=Verdict.UNKNOWN if over else Verdict.INIT_INCOMPLETE,
            culprits=culprits,
            confidence=Confidence.MEDIUM if culprits else Confidence.LOW,
            summary=_summary(first, launcher, meets=meets, over=over),
            evidence=tuple(_evidence(first, launcher)),
            next_steps=_steps(first.job, missing),
        ),
        ranks=(),
        groups=(),
        stalled=not over,
        taken_at=first.taken_at,
    )


def _summary(
    capture: NodeCapture, launcher: ProcessCapture | None, *, meets: bool, over: bool
) -> str:
    job = capture.job
    who = job.launcher[:1].upper() + job.launcher[1:]
    if over:
        return f"{who} has ended its ranks and waits for those of other nodes to end"
    if meets or launcher is None or not _frames(launcher):
        return f"{who} {wait_words(job, capture.taken_at)}"
    since = duration_words(int(capture.taken_at - job.started_at))
    place = next(iter(labels(python_frames(_frames(launcher)))), "native code")
    return f"{who} has started no rank for {since}: it stands in {place}"


def _evidence(capture: NodeCapture, launcher: ProcessCapture | None) -> Iterable[str]:
    job = capture.job
    if job.waits is None:
        return
    where = f" at {job.waits.endpoint}" if job.waits.endpoint else ""
    yield f"{job.launcher} (pid {job.launcher_pid}) meets {job.waits.nodes} nodes by {job.waits.rendezvous}{where}"
    if job.node_list:
        yield f"the scheduler's list of nodes: {job.node_list[:500]}"
    frames = labels(python_frames(_frames(launcher))) if launcher is not None else ()
    if frames:
        yield f"its stack, innermost first: {' < '.join(frames[:SHOWN])}"


def _steps(job: Job, missing: tuple[str, ...]) -> tuple[str, ...]:
    endpoint = job.waits.endpoint if job.waits else ""
    look = f"on {_folded(missing)}: " if missing else "on each node of the job: "
    host, _, port = endpoint.rpartition(":")
    reach = (f"nc -zv {host} {port}  # from each node: is the rendezvous reached?",) if host else ()
    return (f"{look}pgrep -af {job.launcher}  # was it started there?", *reach)


def _culprit(node: str) -> Culprit:
    reason = "all other nodes of the run have their launcher in the rendezvous, and it has not come"
    return Culprit(kind="node", rank=None, node=node, pid=None, reason=reason)


def _meets(frames: tuple[Frame, ...]) -> bool:
    mine = (frame for frame in frames if ELASTIC in frame.path or ELASTIC in frame.file)
    return any(frame.function.rpartition(".")[2] in MEETING for frame in mine)


def _frames(launcher: ProcessCapture) -> tuple[Frame, ...]:
    stack = principal(launcher.stacks, launcher.pid)
    return stack.frames if stack else ()


def _count(job: Job) -> int:
    wait = job.waits
    return max(wait.here, len(wait.present)) if wait else 0


def _listed(text: str) -> tuple[str, ...]:
    try:
        return unfold_nodes(text, groups=False, most=MAX_LISTED) if text else ()
    except UsageError:
        return ()


def _short(name: str) -> str:
    return name.partition(".")[0]


def _folded(names: Iterable[str]) -> str:
    text = fold_nodes(names)
    return text if len(text) <= 200 else f"{text[:199]}…"
