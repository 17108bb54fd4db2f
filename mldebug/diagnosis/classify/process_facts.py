"""One process under examination: its capture, the facts that every sign needs, and its native frames in words."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from mldebug.capture.frames import inner, principal, python_frames, site
from mldebug.core.model import Frame, ProcessCapture, ThreadStack, ThreadState
from mldebug.diagnosis.classify.tables.kernel_waits import FUTEX_WAITS

BUSY_CPU = 0.1
"""Share of one core above which a process computes; on a crowded node a loop gets no more."""
LITTLE_CPU = 0.05
"""Share of a core below which a thread that wakes again and again only looks whether it may go on."""
SOME_CPU = 0.02
"""More than a wait that polls now and then uses."""
SOME_IO = 64 << 10
"""Bytes in the span of the samples that say nothing: a logger beside the training, or what the hook wrote because we asked it."""
FUTEX_SWITCHES = 1
"""A wait on a futex does not wake up by itself; once, a signal or a neighbour may wake it."""


class ProcessFacts:
    """One process: its capture, and facts that the classification rules need.

    "Main thread" is the one whose stack was read.
    """

    def __init__(self, capture: ProcessCapture) -> None:
        self.capture = capture
        self.stack: ThreadStack | None = principal(capture.stacks, capture.pid)
        self.native = principal(capture.native, capture.pid)
        self.frames = python_frames((self.stack or self.native or ThreadStack(tid=0)).frames)
        self.place: Frame | None = site(self.frames)
        self.region = inner(self.frames, self.place)  # what the job's line called, innermost first
        self.thread: ThreadState = self._thread()
        self.movement = capture.movement

    def _thread(self) -> ThreadState:
        """The kernel's view of the thread whose stack speaks; the main one where tids do not match (containers)."""
        state = self.capture.state
        if state is None:
            return ThreadState(tid=0)
        by_tid = {thread.tid: thread for thread in state.threads}
        fallback = state.main or ThreadState(tid=state.pid, state=state.state)
        return by_tid.get(self.stack.tid, fallback) if self.stack else fallback

    @property
    def at(self) -> str:
        """The place of the process in the training code, as py-spy writes it: `load (train.py:7)`."""
        frame = self.place or (self.frames[0] if self.frames else None)
        return frame.place if frame else "an unknown place (no Python stack)"

    @property
    def asleep(self) -> bool:
        """Whether samples show the main thread in the same wait all the time: same frames, no context switch (on a futex a few).

        True without samples.
        """
        move = self.movement
        return move is None or (
            move.same_frames and move.switches <= (FUTEX_SWITCHES if self.on_futex else 0)
        )

    @property
    def on_futex(self) -> bool:
        """Whether the main thread waits on a futex: for a lock, a condition or another thread."""
        return FUTEX_WAITS.fullmatch(self.thread.wchan) is not None

    @property
    def still(self) -> bool:
        """Whether samples show neither movement nor I/O of the process. True without samples."""
        return self.asleep and not self.transfers

    @property
    def rests(self) -> bool:
        """Whether the process waits on a futex in one place with almost no CPU time, however often it wakes up.

        False without samples.
        """
        move = self.movement
        if move is None or not self.on_futex or self.transfers:
            return False
        return move.same_frames and max(move.cpu_ratio, move.process_cpu_ratio) < SOME_CPU

    @property
    def transfers(self) -> bool:
        """Whether samples show that the process reads or writes. False without samples."""
        return self.movement is not None and self.movement.io_chars > SOME_IO

    @property
    def computes(self) -> bool:
        """Whether the process runs on a CPU: by CPU time between samples, else by its state in the kernel, else by py-spy's word."""
        running = self.thread.state == "R"
        if self.movement is not None:
            cpu = max(self.movement.cpu_ratio, self.movement.process_cpu_ratio)
            return cpu >= BUSY_CPU or (running and cpu >= SOME_CPU)
        if self.capture.state is not None:
            return running
        return bool(self.stack and self.stack.active)

    @property
    def has_gpu(self) -> bool:
        """Whether the process has a GPU device open."""
        state = self.capture.state
        return bool(state and any(file.kind == "gpu" for file in state.files))


def activity(subject: ProcessFacts) -> tuple[str, ...]:
    """One evidence sentence with the counters of the samples (frames, CPU, context switches); empty without samples."""
    move = subject.movement
    if move is None:
        return ()
    moved = "the same frames" if move.same_frames else "changing frames"
    cpu = f"{100 * move.process_cpu_ratio:.0f} % CPU"
    return (
        f"{moved} in {move.samples} samples over {move.span_seconds:.1f} s, {cpu}, {move.switches} context switches",
    )


SHOWN = 4  # parts of the line


_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


_NOWHERE = ("", "?")


def native_words(frames: Iterable[Frame], decides: str) -> str:
    """Native frames as text, innermost first: `libcuda.so.580.159.04 (9 frames without names) < cuStreamSynchronize`.

    `decides`: the function that the verdict rests on; it is always shown, after `…` if it is far
    out. Bare addresses outside of any library are left out.
    """
    parts = list(_parts(frames))
    if decides in parts[:SHOWN]:
        return " < ".join(parts[:SHOWN])
    return " < ".join((*parts[: SHOWN - 2], "…", decides))


def _parts(frames: Iterable[Frame]) -> Iterator[str]:
    for (function, library), some in groupby(frames, key=_named):
        many = sum(1 for _ in some)
        if function:
            yield from (function,) * many
        elif library not in _NOWHERE:
            nameless = f"{many} frames without names" if many > 1 else "a frame without a name"
            yield f"{library} ({nameless})"


def _named(frame: Frame) -> tuple[str, str]:
    """The function, or where it has no name, the library."""
    bare = frame.native and _ADDRESS.fullmatch(frame.function)
    return ("", frame.file) if bare else (frame.function, "")
