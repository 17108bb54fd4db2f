"""A rank that waits for its DataLoader: find the worker to blame, by comparing it with the idle workers beside it."""

from collections.abc import Callable, Iterator

from mldebug.capture.frames import bare, is_user, principal, python_frames
from mldebug.core.model import Classification, ProcessCapture, RankCapture, Role
from mldebug.diagnosis.classify.process_facts import ProcessFacts, activity

SHOWN = 4  # frames
BEGINNINGS = ("_worker_loop", "_bootstrap", "_bootstrap_inner")  # of a worker, a process, a thread
Suspicion = tuple[ProcessCapture, Classification]


def stalled_loader(
    process: ProcessFacts,
    doing: str,
    capture: RankCapture,
    classify_child: Callable[[ProcessCapture], Classification],
) -> Classification:
    """The class of a rank that waits for a DataLoader worker.

    If exactly one worker is not simply idle, that one is blamed, else none. `doing`: the phrase for
    the rank.
    """
    guilty = list(_suspicious_workers(capture, classify_child))
    facts = tuple(f"worker {child.pid} {found.doing}" for child, found in guilty)
    if len(guilty) != 1:
        return Classification(
            name="dataloader",
            role=Role.INERT,
            doing=doing,
            site=process.at,
            why=(*facts, *activity(process)),
        )
    child, found = guilty[0]
    if found.role is Role.BUSY:
        doing = f"{doing}: worker {child.pid} {found.doing}"
        return Classification(
            name="dataloader_busy", role=Role.BUSY, doing=doing, site=process.at, why=facts
        )
    return Classification(
        name="dataloader",
        role=Role.INERT,
        doing=f"{doing}: worker {child.pid} {found.doing}",
        site=process.at,
        direct=found.direct,
        mount=found.mount,
        path=found.path,
        worker_pid=child.pid,
        worker_class=found.name,
        holders=found.holders,
        why=(*child_stack(child), *(f"worker {child.pid}: {fact}" for fact in found.why)),
    )


def child_stack(child: ProcessCapture) -> tuple[str, ...]:
    """The stack of a child process as text: `worker 6002 stands in read_shard (data.py:54) < __getitem__ (data.py:31) < …`, only the job's own code where there is any."""
    stack = principal(child.stacks, child.pid)
    frames = python_frames(stack.frames) if stack else ()
    begin = next((at for at, frame in enumerate(frames) if bare(frame) in BEGINNINGS), len(frames))
    frames = frames[:begin]  # below it stands where its parent forked it
    own = [frame.label for frame in frames if is_user(frame)] or [frame.label for frame in frames]
    if not own:
        return ()
    return (f"{child.kind} {child.pid} stands in {' < '.join(own[:SHOWN])}",)


def _suspicious_workers(
    capture: RankCapture, classify_child: Callable[[ProcessCapture], Classification]
) -> Iterator[Suspicion]:
    """Workers that do not stand in their own empty index queue."""
    for child in capture.children:
        if child.kind != "worker":
            continue
        if not _idles_for_work(child) or (child.state and child.state.state in "TtDZ"):
            yield child, classify_child(child)


def _idles_for_work(child: ProcessCapture) -> bool:
    """True for a DataLoader worker whose innermost frames are `index_queue.get` below `_worker_loop`."""
    stack = principal(child.stacks, child.pid)
    if stack is None:
        return False
    frames = python_frames(stack.frames)
    names = [bare(frame) for frame in frames]
    loop = names.index("_worker_loop") if "_worker_loop" in names else -1
    inside = frames[:loop] if loop >= 0 else ()
    return (
        loop >= 0 and any(bare(f) == "get" for f in inside) and not any(is_user(f) for f in inside)
    )
