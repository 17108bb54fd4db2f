"""A rank that waits for its DataLoader: find the worker to blame, by comparing it with the idle workers beside it."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from mldebug.capture.frames import bare, is_user, principal, python_frames
from mldebug.core.model import (
    Classification,
    Frame,
    ProcessCapture,
    RankCapture,
    Role,
    ThreadStack,
)
from mldebug.core.text import plural
from mldebug.diagnosis.classify.process_facts import ProcessFacts, activity
from mldebug.diagnosis.classify.tables.kernel_waits import ON_STORAGE

SHOWN = 4  # frames, and workers
BEGINNINGS = ("_worker_loop", "_bootstrap", "_bootstrap_inner")  # of a worker, a process, a thread
Suspicion = tuple[ProcessCapture, Classification]


def stalled_loader(
    process: ProcessFacts,
    doing: str,
    capture: RankCapture,
    classify_child: Callable[[ProcessCapture], Classification],
) -> Classification:
    """The class of a rank that waits for a DataLoader worker.

    The worker that is not simply idle is blamed; of several that all stand alike (each reads from the mount that does not answer) the
    first, and the others are counted. Where they stand at different things none is blamed. `doing`: the phrase for the rank.
    """
    guilty = sorted(_suspicious_workers(capture, classify_child), key=_on_storage_first)
    if not guilty or not _are_alike([found for _, found in guilty]):
        facts = tuple(f"worker {child.pid} {found.doing}" for child, found in guilty)
        return Classification(
            name="dataloader",
            role=Role.INERT,
            doing=doing,
            site=process.at,
            why=(*facts, *activity(process)),
        )
    child, found = guilty[0]
    doing = f"{doing}: worker {child.pid} {found.doing}{_others(len(guilty) - 1)}"
    if found.role is Role.BUSY:
        why = tuple(f"worker {child.pid} {found.doing}" for child, found in guilty)
        return Classification(
            name="dataloader_busy", role=Role.BUSY, doing=doing, site=process.at, why=why
        )
    every = [found for _, found in guilty]
    return Classification(
        name="dataloader",
        role=Role.INERT,
        doing=doing,
        site=process.at,
        direct=all(one.direct for one in every),
        mount=_common(one.mount for one in every),
        path=found.path,
        worker_pid=child.pid,
        worker_class=found.name,
        holders=found.holders if all(one.holders == found.holders for one in every) else (),
        why=tuple(line for child, found in guilty[:SHOWN] for line in _facts(child, found)),
    )


def _on_storage_first(one: Suspicion) -> bool:
    """One that is known to read a file says more than one of which the kernel shows only that it cannot be interrupted."""
    return one[1].name != ON_STORAGE[0]


def _are_alike(found: Sequence[Classification]) -> bool:
    """Whether all stand at the same kind of thing: workers that still compute beside one that stands may be what is waited for, and of
    two mounts neither is to blame alone.
    """
    return len({_kind(one) for one in found}) == 1


def _kind(one: Classification) -> tuple[str, Role, str]:
    if one.name in ON_STORAGE:
        return ON_STORAGE[0], one.role, one.mount
    return one.name, one.role, ""


def _others(count: int) -> str:
    return f" (and {plural(count, 'other worker')} alike)" if count else ""


def _common(values: Iterable[str]) -> str:
    """The one value that all have; "" where they differ."""
    every = set(values)
    return every.pop() if len(every) == 1 else ""


def _facts(child: ProcessCapture, found: Classification) -> tuple[str, ...]:
    return (*child_stack(child), *(f"worker {child.pid}: {fact}" for fact in found.why))


def child_stack(child: ProcessCapture) -> tuple[str, ...]:
    """The stack of a child process as text: `worker 6002 stands in read_shard (data.py:54) < __getitem__ (data.py:31) < …`, only the job's own code where there is any."""
    stack = principal(child.stacks, child.pid)
    frames = begun(stack) if stack else ()
    own = [frame.label for frame in frames if is_user(frame)] or [frame.label for frame in frames]
    if not own:
        return ()
    return (f"{child.kind} {child.pid} stands in {' < '.join(own[:SHOWN])}",)


def begun(stack: ThreadStack) -> tuple[Frame, ...]:
    """The Python frames of a thread of a child from where its process or thread began: below it stands where its parent forked it."""
    frames = python_frames(stack.frames)
    return frames[: next((at for at, frame in enumerate(frames) if bare(frame) in BEGINNINGS), len(frames))]  # fmt: skip


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
