"""A rank that waits for threads of its own process: what they do, and which of them holds Python's GIL."""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mldebug.capture.frames import comparable, inner, owner_of, principal, site
from mldebug.capture.packages import Owner
from mldebug.core.model import (
    MAIN_THREAD,
    Classification,
    Frame,
    ProcessCapture,
    RankCapture,
    Role,
    ThreadStack,
)
from mldebug.diagnosis.classify.awaited.tasks import TASK_THREAD, idles
from mldebug.diagnosis.classify.process_facts import LITTLE_CPU, ProcessFacts

ClassifyProcess = Callable[[ProcessCapture], Classification]
ClassifyRank = Callable[[RankCapture], Classification]

MAX_NAMED = 3
MAX_COMPARED = 128  # ranks whose other threads are compared
PARKED = ("sleep", "poll", "idle", "lock", "thread_join", "future")
"""What a main thread does whose work is done by another one."""
LIBC = ("libc.so.6", "libc-2.31.so", "libpthread.so.0", "ld-linux-x86-64.so.2")
ENGINE_WAITS = ("torch::autograd::ReadyQueue::pop",)
WAITS_FOR_THREADS = ("thread_join", "thread_exit", "future")
FED_BY_THREADS = ("lock",)
"""Waits on a queue, a lock or an event: what frees them may be any thread that runs the code of the job or of an installed package."""


def with_threads(
    found: Classification, capture: ProcessCapture, classify_process: ClassifyProcess
) -> Classification:
    """Add to the class of a process whose main thread waits for another of its threads what the threads that run the job's code do (at most `MAX_NAMED`)."""
    if found.name in WAITS_FOR_THREADS:
        threads = _others(capture, Owner.LIBRARY)
    elif found.name in FED_BY_THREADS:
        threads = _others(capture, Owner.FRAMEWORK)
    else:
        return found
    words = list(_words(capture, threads, classify_process))[:MAX_NAMED]
    if not words or words[0] in found.doing:
        return found
    return msgspec.structs.replace(found, doing=f"{found.doing}: {'; '.join(words)}")


def with_job_threads(
    found: Classification, capture: ProcessCapture, classify_process: ClassifyProcess
) -> Classification:
    """Add to the class of a child process what its threads beside the main one do in the job's own code."""
    threads = _others(capture, Owner.INSTALLED)
    words = list(_words(capture, threads, classify_process))[:MAX_NAMED]
    doing = f"{found.doing}: {'; '.join(words)}" if words else found.doing
    return msgspec.structs.replace(found, doing=doing)


def _others(capture: ProcessCapture, below: Owner) -> list[ThreadStack]:
    """The threads beside the main one that run code nearer to the job than `below`."""
    main = principal(capture.stacks, capture.pid)
    places = ((stack, site(stack.frames)) for stack in capture.stacks if stack is not main)
    return [stack for stack, at in places if at is not None and owner_of(at) < below]


def _words(
    capture: ProcessCapture, threads: Sequence[ThreadStack], classify_process: ClassifyProcess
) -> Iterator[str]:
    for stack in sorted(threads, key=_at_queue):
        is_ = classify_process(as_main(capture, stack))
        yield f"its thread {stack.name or stack.tid} {is_.doing}"


def _at_queue(stack: ThreadStack) -> bool:
    """Whether it waits on a queue itself, as a thread does that has nothing to do."""
    return any(frame.file == "queue.py" for frame in inner(stack.frames, site(stack.frames)))


def as_main(capture: ProcessCapture, stack: ThreadStack) -> ProcessCapture:
    """The capture of a process reduced to this one thread, which is made its main thread: what says of a main thread what it waits for can then
    judge this one.
    """
    native = tuple(one for one in capture.native if one.tid == stack.tid)
    facts = ProcessFacts(
        msgspec.structs.replace(capture, stacks=(_renamed(stack),), native=(), movement=None)
    )
    call = facts.thread.syscall_args[:1]
    files = capture.state.files if capture.state else ()
    move = capture.movement
    return msgspec.structs.replace(
        capture,
        stacks=(_renamed(stack),),
        native=tuple(map(_renamed, native)),
        source_line="",
        blocked_on=next((file for file in files if (file.fd,) == call), None),
        movement=msgspec.structs.replace(move, same_frames=move.same_threads, switches=0, cpu_ratio=0.0)
        if move
        else None,
    )  # fmt: skip


def _renamed(stack: ThreadStack) -> ThreadStack:
    return msgspec.structs.replace(stack, name=MAIN_THREAD)


# --- the interpreter's lock ------------------------------------------------------------------------

ASKS = 100  # times a second at least, of the 200 of an idle machine: who waits for the GIL with others to run gets fewer


def gil_holder(capture: ProcessCapture) -> ThreadStack | None:
    """The thread that holds Python's GIL, if it is not the thread by which the process is judged; else None."""
    main = principal(capture.stacks, capture.pid)
    return next((one for one in capture.stacks if one.owns_gil and one is not main), None)


def waits_for_gil(process: ProcessFacts) -> bool:
    """Whether the main thread waits for Python's GIL, which another thread holds: it stays in one place with almost no CPU time, on a futex
    or, between two of these, ready to run. Python asks for its lock 200 times a second, so a machine without a free CPU shows it ready.

    False without samples.
    """
    move = process.movement
    if move is None or gil_holder(process.capture) is None:
        return False
    asks = process.thread.state == "R" and move.switches >= ASKS * move.span_seconds
    if not (process.on_futex or asks):
        return False
    return move.same_frames and move.cpu_ratio < LITTLE_CPU and not process.transfers


def holder_words(stack: ThreadStack) -> str:
    """The thread that holds the GIL as text: `its thread gpu-metrics in sleep (libc.so.6) at metrics_plugin (train.py:9)`, with the native call where it was read."""
    place = site(stack.frames)
    native = next(filter(_has_name, stack.frames), None) if stack.frames else None
    call = f" in {native.function} ({native.file})" if native is not None else ""
    at = f"{' at' if call else ' in'} {place.place}" if place else ""
    return f"its thread {stack.name or stack.tid}{call}{at}"


def _has_name(frame: Frame) -> bool:
    """A native function with a name, of a library that is not the C library's own."""
    return frame.native and not frame.function.startswith("0x") and frame.file not in LIBC


def waits_for_engine(stack: ThreadStack | None) -> bool:
    """Whether this thread, in a backward pass, waits for autograd's own threads, by a native frame of its stack."""
    frames = stack.frames if stack else ()
    return any(frame.native and frame.function in ENGINE_WAITS for frame in frames)


# --- ranks that train in a thread ------------------------------------------------------------------


def training_thread(ranks: Sequence[RankCapture], classify: ClassifyRank) -> str:
    """The name, without digits, of the thread that trains, where the main threads of all ranks stand idle in one place; "" where they train themselves.

    A thread of that name is on every rank, and on at least one rank it waits for other ranks; of Dask it is the thread that runs
    tasks. Only the first `MAX_COMPARED` ranks are looked at.
    """
    ranks = ranks[:MAX_COMPARED]
    names = [_thread_names(rank.process) for rank in ranks]
    if runs_tasks := sorted(filter(TASK_THREAD.fullmatch, set().union(*names))):
        return runs_tasks[0]
    if len(ranks) < 2 or not all(classify(rank).name in PARKED for rank in ranks):
        return ""
    mains = {_main_labels(rank.process) for rank in ranks}
    if len(mains) != 1 or () in mains:
        return ""
    common = set.intersection(*names)
    waiting = {
        name: sum(classify(on_thread(rank, name)).role is Role.WAITING for rank in ranks)
        for name in sorted(common)
    }
    name = max(waiting, key=lambda name: waiting[name], default="")
    return name if name and waiting[name] else ""


def on_thread(rank: RankCapture, name: str) -> RankCapture:
    """The rank reduced to its thread with this name (digits left out); unchanged where it has none."""
    stacks = rank.process.stacks
    named = (one for one in stacks if _plain(one.name) == name and not idles(one.frames))
    stack = next((one for one in named if site(one.frames)), None)
    if stack is None:
        return rank
    return msgspec.structs.replace(rank, process=as_main(rank.process, stack))


def second_waits(ranks: Sequence[RankCapture], classify: ClassifyRank) -> str:
    """A sentence on what a second thread of every rank waits for, where it waits for other ranks, too; "" where some rank has none, or of more than `MAX_COMPARED` ranks."""
    found: list[tuple[str, str]] = []
    for rank in ranks if len(ranks) <= MAX_COMPARED else ():
        main = principal(rank.process.stacks, rank.process.pid)
        names = [one.name for one in rank.process.stacks if one is not main and site(one.frames)]
        classes = [(name, classify(on_thread(rank, _plain(name)))) for name in names]
        waits = [(name, is_.operation) for name, is_ in classes if is_.role is Role.WAITING]
        if not waits:
            return ""
        found += waits[:1]
    threads = ", ".join(dict.fromkeys(name for name, _ in found))
    calls = ", ".join(dict.fromkeys(filter(None, (operation for _, operation in found))))
    if not calls:
        return ""
    return (
        f"a second thread of every rank ({threads}) waits in {calls}: where two threads use one process group, ranks may call it"
        " in another order"
    )


def _main_labels(process: ProcessCapture) -> tuple[str, ...]:
    main = next((one for one in process.stacks if one.name == MAIN_THREAD), None)
    return comparable(main.frames) if main else ()


def _thread_names(process: ProcessCapture) -> set[str]:
    others = (one for one in process.stacks if one.name != MAIN_THREAD and site(one.frames))
    return {_plain(one.name) for one in others if one.name}


def _plain(name: str) -> str:
    return re.sub(r"\d+", "#", name)
