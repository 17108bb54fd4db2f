"""From one rank's capture to its class: waiting, inert, busy, exited or unclear, and the phrase that says so.

Signs are asked from the most direct to the least: the kernel's process state, wait channels that no Python frame can
explain away, the Python frames, the native frames, the remaining wait channels, the source line, and last CPU time.
"""

from functools import lru_cache

from mldebug.capture.stacks import bare, inner, is_user, python_frames, site
from mldebug.core.model import (
    Classification,
    Frame,
    ProcessCapture,
    RankCapture,
    Role,
    ThreadStack,
)
from mldebug.diagnosis.classify import frame_table
from mldebug.diagnosis.classify.dataloader import stalled_loader
from mldebug.diagnosis.classify.frame_table import FrameSign, NameSign
from mldebug.diagnosis.classify.kernel_state import (
    by_wait_channel,
    from_sign,
    gone,
    held_by_profiler,
    inert,
    stdin_wait,
    stopped,
    storage_wait,
    tracer_words,
    wait_channel,
)
from mldebug.diagnosis.classify.process_facts import ProcessFacts, activity, native_words

OF_ITS_OWN = frozenset(
    ("sleep", "fifo", "terminal", "flock", "file_lock", "child_wait", "debugger", "pipe_write")
)
"""What holds the main thread itself: no other thread of the process would free it."""


def classify(capture: RankCapture) -> Classification:
    """Classify one rank; never raises, and answers `unclear` where the evidence does not tell."""
    subject = ProcessFacts(capture.process)
    for sign in (gone, stopped, storage_wait, stdin_wait):
        if found := sign(subject):
            return found
    found = _by_calls(subject, capture)
    if found is None:
        found = _by_native(subject) or by_wait_channel(subject) or _by_source(subject)
    found = found or _by_activity(subject)
    if found.role is Role.WAITING or found.name in OF_ITS_OWN:
        return found
    return _by_other_threads(subject) or found


def classify_process(capture: ProcessCapture) -> Classification:
    """Classify a child (a DataLoader worker): the same signs, without its own children."""
    subject = ProcessFacts(capture)
    for sign in (gone, stopped, storage_wait, stdin_wait, _by_native, by_wait_channel):
        if found := sign(subject):
            return found
    if subject.computes and not subject.frames:
        doing = "computes (its stack could not be read)"
        return Classification(name="busy", role=Role.BUSY, doing=doing, why=activity(subject))
    return _by_activity(subject)


def _by_other_threads(subject: ProcessFacts) -> Classification | None:
    """Training may run in another thread (Ray, a pool of communication threads): if one waits, the rank waits.

    Only for a main thread that itself does nothing but wait for its threads; the name of the thread is told.
    """
    if subject.computes and subject.thread.state == "R":
        return None
    for stack in subject.capture.stacks:
        if stack is subject.stack or site(stack.frames) is None:
            continue
        match = _match_calls(python_frames(stack.frames))
        if match and match[0].role is Role.WAITING and match[0].name != "device_sync":
            return _waits_in_thread(subject, stack, *match)
    return None


def _waits_in_thread(
    subject: ProcessFacts, stack: ThreadStack, row: FrameSign, operation: str
) -> Classification:
    place = site(stack.frames)
    at = place.label if place else subject.at
    return Classification(
        name=row.name,
        role=Role.WAITING,
        doing=f"{row.phrase.format(op=operation, site=at)}, in its thread {stack.name or stack.tid}",
        site=at,
        operation=operation,
        thread=stack.name or str(stack.tid),
        why=(f"its main thread stands in {subject.at}", *activity(subject)),
    )


# --- stacks ----------------------------------------------------------------------------------------


def _by_calls(subject: ProcessFacts, capture: RankCapture) -> Classification | None:
    """Ask the table of Python calls; the kernel and the native stack then make it direct, or correct it."""
    match = _match_calls(subject.frames)
    if match is None:
        return _backward(subject)
    row, operation = match
    if row.name == "dataloader":
        return stalled_loader(
            subject, row.phrase.format(site=subject.at), capture, classify_process
        )
    doing = row.phrase.format(op=operation, site=subject.at)
    if row.name == "child_wait" and _busy_children(capture):
        return _busy_child(subject)
    if row.name == "thread_exit":
        doing += _other_threads(subject)
    if (
        row.role is Role.BUSY
        and not subject.computes
        and subject.still
        and not _busy_children(capture)
    ):
        return _frozen_work(subject, doing)
    native = _native_sign(subject)
    return Classification(
        name=row.name,
        role=row.role,
        doing=doing,
        operation=operation,
        site=subject.at,
        direct=native is not None and native[0].role is row.role,
        why=(f"Python frames: {operation} called at {subject.at}", *activity(subject)),
    )


def _other_threads(subject: ProcessFacts) -> str:
    """` (uploader, in push (upload.py:9))`: the threads that are left, with their place."""
    others = [
        stack for stack in subject.capture.stacks if stack is not subject.stack and stack.frames
    ]
    told = [
        f"{stack.name or stack.tid}, in {(site(stack.frames) or stack.frames[0]).label}"
        for stack in others
    ]
    return f" ({'; '.join(told[:3])})" if told else ""


def _match_calls(frames: tuple[Frame, ...]) -> tuple[FrameSign, str] | None:
    """The first row that matches; the operation is the outermost matching call, as the user wrote it."""
    region = inner(frames)
    rows = [_rows_of(frame.file, bare(frame)) for frame in region]
    first = min((index for found in rows for index in found), default=None)
    if first is None:
        return None
    hits = [bare(frame) for frame, found in zip(region, rows, strict=True) if first in found]
    return frame_table.PYTHON[first], hits[-1]


@lru_cache(maxsize=4096)
def _rows_of(file: str, function: str) -> tuple[int, ...]:
    """The rows that this call fits; thousands of ranks stand in a few dozen calls."""
    return tuple(
        index
        for index, row in enumerate(frame_table.PYTHON)
        if row.file.fullmatch(file) and row.function.fullmatch(function)
    )


def _frozen_work(subject: ProcessFacts, doing: str) -> Classification | None:
    """Work that does not move: the wait channel says why; else it is unclear."""
    if found := by_wait_channel(subject):
        return found
    why = ("no CPU time, no I/O and the same frames in every sample",)
    return Classification(
        name="idle", role=Role.INERT, doing=f"{doing}, without moving", site=subject.at, why=why
    )


def _backward(subject: ProcessFacts) -> Classification | None:
    """`backward()` computes, or waits inside for other ranks: native frames tell, else whether it sleeps."""
    row = frame_table.BACKWARD
    hits = [
        f
        for f in inner(subject.frames)
        if row.file.fullmatch(f.file) and row.function.fullmatch(bare(f))
    ]
    if not hits:
        return None
    if (native := _by_native(subject)) is not None:
        return native
    facts = activity(subject)
    if subject.computes or not (subject.still or subject.rests):
        return Classification(
            name="backward",
            role=Role.BUSY,
            doing=f"runs backward at {subject.at}",
            site=subject.at,
            why=facts,
        )
    if not subject.on_futex:
        return None
    doing = f"waits inside backward at {subject.at}"
    return Classification(
        name="backward_wait",
        role=Role.WAITING,
        doing=doing,
        operation="backward",
        site=subject.at,
        why=facts,
    )


def _native_sign(subject: ProcessFacts) -> tuple[NameSign, str] | None:
    """The innermost native frame that the table knows, below the innermost Python frame, and what it is called."""
    if subject.native is None:
        return None
    for frame in subject.native.frames:
        if not frame.native:
            return None
        for row in frame_table.NATIVE:
            if row.pattern.fullmatch(frame.function):
                return row, frame.function
    return None


def _by_native(subject: ProcessFacts) -> Classification | None:
    found = _native_sign(subject)
    if found is None or subject.native is None:
        return None
    sign, function = found
    if sign.name == "gil":
        return _gil(subject)
    fact = f"native stack: {native_words(subject.native.frames, function)}"
    return from_sign(subject, sign, fact, direct=True)


def _gil(subject: ProcessFacts) -> Classification:
    holder = next(
        (s for s in subject.capture.stacks if s.owns_gil and s is not subject.stack), None
    )
    where = site(holder.frames) if holder else None
    who = f", held by its thread {holder.name or holder.tid}" if holder else ""
    at = f" in {where.label}" if where else ""
    return inert(
        subject, "gil", f"waits for the GIL in {subject.at}{who}{at}", "native stack: take_gil"
    )


def _busy_child(subject: ProcessFacts) -> Classification:
    doing = f"waits for a child process that computes, in {subject.at}"
    return Classification(
        name="child_busy", role=Role.BUSY, doing=doing, site=subject.at, why=activity(subject)
    )


def _busy_children(capture: RankCapture) -> bool:
    """True where a child process computes for the rank: a compiler, for one."""
    return any(ProcessFacts(child).computes for child in capture.children)


# --- what remains ----------------------------------------------------------------------------------


def _by_source(subject: ProcessFacts) -> Classification | None:
    """A line such as `loss.item()` tells of a wait that leaves no Python frame; C code has released the GIL there."""
    line = subject.capture.source_line
    if (
        not line
        or (subject.stack and subject.stack.owns_gil)
        or not subject.frames
        or not is_user(subject.frames[0])
    ):
        return None
    rows = frame_table.SOURCE + (frame_table.GPU_SOURCE if subject.has_gpu else ())
    for row in rows:
        if row.pattern.fullmatch(line):
            return from_sign(subject, row, f"source line: {line.strip()}", direct=False)
    return None


def _by_activity(subject: ProcessFacts) -> Classification:
    """No name for what it does: the counters decide between busy and idle, and between those and unclear."""
    holder = next((s for s in subject.capture.stacks if s.owns_gil), None)
    if subject.computes and _released_gil(subject):
        return _loosely(subject, "native_code", Role.UNCLEAR, "is in native code in")
    if not subject.frames:
        return Classification(
            name="unclear", role=Role.UNCLEAR, doing="cannot be seen", why=activity(subject)
        )
    state = subject.capture.state
    if state is not None and held_by_profiler(state):
        return _loosely(subject, "profiled", Role.UNCLEAR, f"is held by {tracer_words(state)} in")
    if subject.computes or not subject.still:
        return _loosely(subject, "busy", Role.BUSY, "runs")
    if holder is not None and holder is not subject.stack:
        return _gil(subject)
    if subject.on_futex and is_user(subject.frames[0]):
        return _loosely(subject, "futex", Role.UNCLEAR, "waits for a lock, or for other ranks, in")
    polls = frame_table.POLL_WAITS.fullmatch(wait_channel(subject.thread))
    words = "waits for a descriptor (a socket, a pipe) in" if polls else "does nothing in"
    return _loosely(subject, "idle", Role.INERT, words)


def _loosely(subject: ProcessFacts, name: str, role: Role, words: str) -> Classification:
    """A class that rests on counters alone."""
    doing = f"{words} {subject.at}"
    return Classification(name=name, role=role, doing=doing, site=subject.at, why=activity(subject))


def _released_gil(subject: ProcessFacts) -> bool:
    """On a CPU, in the same Python line all the time, without the GIL: C code runs, or spins."""
    frozen = subject.movement is None or subject.movement.same_frames
    return frozen and bool(subject.stack) and not any(s.owns_gil for s in subject.capture.stacks)
