"""The ranks of a report: one small row each.

Threads and log lines are kept only for ranks that a reader will look at.
"""

from collections.abc import Iterator

from mldebug.capture.flight_recorder.votes import collective_words
from mldebug.core.model import (
    ClassifiedRank,
    HookState,
    Judgement,
    ProcessCapture,
    Role,
    ThreadStack,
)
from mldebug.core.report_model import RankView, SourceView, ThreadView

NO_COLLECTIVES = ("synchronize", "wait", "_store_based_barrier")  # waits in no call of all ranks
MAX_DETAILED = 64  # ranks shown with threads and log: culprits first, then representatives
MAX_THREADS = 64  # per rank
MAX_FRAMES = 200  # per stack: the inner and the outer half stay
MAX_LOG_LINES = 100
MAX_TRACE_LINES = 40
MAX_CHILDREN = 8  # processes of a culprit shown with their stacks


def rank_views(judgement: Judgement) -> tuple[RankView, ...]:
    """Return a row per rank, in their order."""
    blamed = {one.rank for one in judgement.diagnosis.culprits if one.rank is not None}
    detailed = set(_detailed(judgement, blamed))
    return tuple(
        _rank_view(one, judgement.group_of.get(one.rank), one.rank in blamed, one.rank in detailed)
        for one in judgement.ranks
    )


def _detailed(judgement: Judgement, blamed: set[int]) -> list[int]:
    """Culprits, then the first captured rank of every group."""
    first: dict[int, int] = {}
    for one in judgement.ranks:
        if _has_details(one) and one.rank in judgement.group_of:
            first.setdefault(judgement.group_of[one.rank], one.rank)
    representatives = [rank for _, rank in sorted(first.items())]
    return [*sorted(blamed), *(rank for rank in representatives if rank not in blamed)][
        :MAX_DETAILED
    ]


def _has_details(one: ClassifiedRank) -> bool:
    """Of a rank that is gone its hook's or its tracer's last word may be all that is left."""
    capture = one.capture
    if capture is None:
        return False
    process = capture.process
    return bool(capture.log or capture.trace or process.state or process.stacks or process.native)


def _rank_view(one: ClassifiedRank, group: int | None, culprit: bool, detailed: bool) -> RankView:
    process = one.capture.process if one.capture else None
    moved = process.movement if process else None
    log = one.capture.log if one.capture and detailed else None
    hook = (one.capture.hook if one.capture else None) or HookState()
    trace = one.capture.trace if one.capture else None
    return RankView(
        rank=one.rank,
        node=one.node,
        pid=one.pid,
        class_=one.is_.name,
        role=one.is_.role,
        state=_main_state(process),
        cpu_ratio=round(moved.cpu_ratio, 3) if moved else None,
        group=group,
        last_collective=collective_words(one.capture.flight if one.capture else None)
        or _operation(one),
        doing=one.is_.doing,
        culprit=culprit,
        threads=_threads(one, culprit) if detailed else (),
        log=log.lines[-MAX_LOG_LINES:] if log else (),
        log_source=log.path if log else "",
        step=hook.step,
        step_age=None if hook.step is None else hook.step_age,
        phase=hook.phase,
        phase_age=hook.phase_age if hook.phase else None,
        last_call=trace.last if trace else "",
        last_call_age=trace.age if trace else None,
        trace=trace.lines[-MAX_TRACE_LINES:] if trace and detailed else (),
        source=_source(one) if culprit else None,
    )


def _source(one: ClassifiedRank) -> SourceView | None:
    """Where the process stands that is to blame: the rank, or the child of it that it waits for."""
    if one.capture is None:
        return None
    child = next((child for child in one.capture.children if child.pid == one.is_.worker_pid), None)
    found = (child or one.capture.process).source
    if found is None:
        return None
    return SourceView(path=found.path, line=found.line, first=found.first, lines=found.lines)


def _operation(one: ClassifiedRank) -> str:
    """The collective that the stack shows: a rank that waits for its GPU, a child or a thread is in none."""
    own = one.is_.role in (Role.INERT, Role.BUSY) or one.is_.operation in NO_COLLECTIVES
    return "" if own else one.is_.operation


def _main_state(process: ProcessCapture | None) -> str:
    if process is None or process.state is None:
        return ""
    main = process.state.main
    return f"{main.state} {main.wchan}".strip() if main else process.state.state


def _threads(one: ClassifiedRank, culprit: bool) -> tuple[ThreadView, ...]:
    if one.capture is None:
        return ()
    views = list(_process_threads(one.capture.process))
    if culprit:
        children = sorted(one.capture.children, key=lambda child: child.pid != one.is_.worker_pid)
        for child in children[:MAX_CHILDREN]:
            views.extend(_process_threads(child, f"{child.kind} {child.pid}: "))
    return tuple(views[:MAX_THREADS])


def _process_threads(process: ProcessCapture, prefix: str = "") -> Iterator[ThreadView]:
    """The main thread first; a native stack replaces the Python one, whose frames it holds too."""
    native = {stack.tid: stack for stack in process.native if stack.frames}
    known = {stack.tid for stack in process.stacks}
    stacks = [native.get(stack.tid, stack) for stack in process.stacks]
    stacks += [stack for tid, stack in native.items() if tid not in known]
    names = {stack.tid: stack.name for stack in (*process.native, *process.stacks)}
    for stack in sorted(stacks, key=lambda each: each.tid != process.pid):
        yield ThreadView(
            name=prefix + (names[stack.tid] or stack.name),
            tid=stack.tid,
            state=_thread_state(process, stack),
            frames=shorten_stack(tuple(frame.label for frame in stack.frames)),
        )


def _thread_state(process: ProcessCapture, stack: ThreadStack) -> str:
    kernel = process.state.threads if process.state else ()
    state = next((f"{one.state} {one.wchan}" for one in kernel if one.tid == stack.tid), "")
    words = [state.strip(), "active" if stack.active else "", "gil" if stack.owns_gil else ""]
    return "+".join(word for word in words if word)


def shorten_stack(frames: tuple[str, ...]) -> tuple[str, ...]:
    """The frames, with the middle of a stack of more than `MAX_FRAMES` replaced by a count."""
    if len(frames) <= MAX_FRAMES:
        return frames
    half = MAX_FRAMES // 2
    return (*frames[:half], f"… {len(frames) - 2 * half} frames …", *frames[-half:])
