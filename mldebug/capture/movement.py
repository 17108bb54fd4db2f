"""Compares samples of one process: does it stand still, or go on? The result is a `Movement`."""

from collections import Counter
from typing import NamedTuple

import msgspec

from mldebug.capture.frames import comparable, principal, python_frames
from mldebug.core.model import Movement, ProcessState, ThreadStack, ThreadState


class ProcessSample(NamedTuple):
    """One cheap reading of a process: time (monotonic seconds), kernel counters, and Python stacks (None: not read)."""

    at: float
    state: ProcessState | None
    stacks: tuple[ThreadStack, ...] | None


def movement(pid: int, samples: list[ProcessSample]) -> Movement | None:
    """Compare the samples of one process, oldest first. None where fewer than two of them could be read, or no time passed
    between them.
    """
    readable = [sample for sample in samples if sample.state is not None]
    if len(readable) < 2 or readable[-1].at <= readable[0].at:
        return None
    first, last = readable[0], readable[-1]
    span = last.at - first.at
    tid = _thread_that_speaks(pid, readable)
    before, after = _thread(first.state, tid), _thread(last.state, tid)
    stacks = [_frames(pid, sample) for sample in readable if sample.stacks is not None]
    return Movement(
        samples=len(readable),
        span_seconds=round(span, 3),
        same_frames=len(set(stacks)) <= 1,
        same_function=len({_functions(stack) for stack in stacks}) <= 1,
        same_threads=len({_all_frames(sample) for sample in readable if sample.stacks is not None})
        <= 1,
        cpu_ratio=_ratio(after.cpu_seconds - before.cpu_seconds, span),
        process_cpu_ratio=_ratio(_cpu(last.state) - _cpu(first.state), span),
        switches=max(0, after.voluntary_switches - before.voluntary_switches),
        io_chars=_io_between(first.state, last.state),
    )


def usual_state(pid: int, samples: list[ProcessSample]) -> ProcessState | None:
    """The first sample's state; where its main thread was awake in that look alone and slept in one wait in most of them, the thread is shown in
    that wait. Who sleeps and looks again is found awake by chance, on a crowded machine for as long as it waits for a CPU.
    """
    state = samples[0].state
    readable = [sample for sample in samples if sample.state is not None]
    tid = _thread_that_speaks(pid, readable)
    if state is None or _thread(state, tid).state != "R":
        return state
    if len({_frames(pid, sample) for sample in readable if sample.stacks is not None}) > 1:
        return state
    looks = [_thread(sample.state, tid) for sample in readable]
    waits = Counter(look.wchan for look in looks if look.state == "S" and look.wchan)
    wchan, number = waits.most_common(1)[0] if waits else ("", 0)
    if 2 * number <= len(looks):
        return state
    asleep = next(look for look in looks if look.wchan == wchan)
    threads = tuple(asleep if thread.tid == tid else thread for thread in state.threads)
    return msgspec.structs.replace(
        state, state="S" if tid == state.pid else state.state, threads=threads
    )


def _thread_that_speaks(pid: int, samples: list[ProcessSample]) -> int:
    """The thread whose stack speaks for the process, where the kernel knows it by the same number."""
    stacks = next((sample.stacks for sample in samples if sample.stacks), ())
    stack = principal(stacks, pid)
    tids = {thread.tid for sample in samples if sample.state for thread in sample.state.threads}
    return stack.tid if stack and stack.tid in tids else pid


def _thread(state: ProcessState | None, tid: int) -> ThreadState:
    threads = state.threads if state else ()
    return next((thread for thread in threads if thread.tid == tid), ThreadState(tid=tid))


def _frames(pid: int, sample: ProcessSample) -> tuple[str, ...]:
    stack = principal(sample.stacks or (), pid)
    return comparable(python_frames(stack.frames)) if stack else ()


def _all_frames(sample: ProcessSample) -> frozenset[tuple[int, tuple[str, ...]]]:
    return frozenset(
        (stack.tid, comparable(python_frames(stack.frames))) for stack in sample.stacks or ()
    )


def _functions(stack: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(label.rpartition(":")[0] or label for label in stack)


def _cpu(state: ProcessState | None) -> float:
    return sum(thread.cpu_seconds for thread in state.threads) if state else 0.0


def _io_between(first: ProcessState | None, last: ProcessState | None) -> int:
    """Nothing, where one of them could not be read: a counter counts from the start of the process."""
    if not (first and last and first.io and last.io):
        return 0
    before = first.io.read_chars + first.io.written_chars
    return max(0, last.io.read_chars + last.io.written_chars - before)


def _ratio(part: float, whole: float) -> float:
    return round(max(0.0, part) / whole, 3)
