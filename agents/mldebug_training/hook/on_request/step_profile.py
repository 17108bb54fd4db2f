"""A trace of some steps by `torch.profiler`, begun and ended by the thread that steps, between two of them.

PyTorch's profiler belongs to a thread and to the whole process at once: two in two threads end the process by a segmentation fault, and
none can end that of another thread. So only the thread that began this one ends it, another thread of the job that begins to profile
waits for that (or has an empty profile), and this one gives way: it is not begun while the job profiles itself, and is thrown away before the job begins to, before it forks (a child would record on for ever), and when a checkpoint or an
evaluation begins. A trace of more than `MAX_EVENTS` is not written.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import fcntl
import os
import sys
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.natives import get_ident
from mldebug_training.common.own_file import OwnFile
from mldebug_training.common.shared_files import (
    FOLDER,
    PREFIX,
    TRACE,
    TRACE_FILE,
    remove,
    start_ticks,
)
from mldebug_training.common.signals import shielded
from mldebug_training.hook.on_request.step_task import (
    DeclinedError,
    StepTask,
    captures_graph,
    free_bytes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mldebug_training.hook.process import OwnProcess
    from mldebug_training.hook.record import HookRecord

MAX_EVENTS = 200_000  # some 60 MB of JSON
EVENT = 400  # bytes of one in the file, generously
SPARE = 4  # times the file's size that has to be free in shared memory: the job may need it, too
PATIENCE = 10.0  # seconds for which another thread that wants to profile waits for this one
LONGEST = 120.0  # seconds of a profile: what takes longer is thrown away at the next step or phase
BEGAN = "the job began to profile itself"
STEPLESS = ("evaluate", "checkpoint_save", "checkpoint_load")
_STARTS = ("_prepare_profiler", "_enable_profiler")  # of torch.autograd.profiler: whoever profiles


class StepProfile(StepTask):
    """Records the next steps of this training process with torch.profiler, as many as the request says, and writes the trace as a file."""

    def __init__(self, process: OwnProcess, record: HookRecord, request: dict[str, Any]) -> None:
        super().__init__(process, record, request)
        self._profile: Any = None
        self._thread = 0
        self._left = self._first = 0
        self._starting = self._before = 0.0  # seconds
        self._replaced: dict[str, Any] = {}
        self._runs = False

    def step(self, step: int) -> None:
        """Called after each step; those of another thread than the one that is profiled are left out."""
        if self._profile is None or self._is_mine():
            super().step(step)

    def at_step(self, step: int) -> None:
        """Called as each step ends: start the profiler at the first call, and stop it after the wanted number of steps."""
        if self._profile is None:
            self._begin(step)
            return
        self._left -= 1
        if self._left <= 0:
            self._end(step)

    def phase(self, name: str) -> None:
        """Called when a phase `name` of the job begins: give the profile up where that is no part of a step (`STEPLESS`), or where the
        profile has gone on for too long.
        """
        if self._profile is None or not self._is_mine() or captures_graph():
            return
        if self._why:
            self._fail(DeclinedError(self._why))
        elif name in STEPLESS:
            self._fail(DeclinedError(f"{name} began meanwhile"))
        elif time.monotonic() > self._until:
            self._fail(DeclinedError(f"no step has ended for {LONGEST:g} s"))

    def before_fork(self) -> None:
        """Called before the job forks: give the profile up, since the child would inherit a profiler that nobody ends."""
        if self._profile is not None and self._is_mine() and not captures_graph():
            self._fail(DeclinedError("the job forked a process meanwhile"))

    def stop(self) -> None:
        """Stop the profiler, and write no trace file."""
        profile, self._profile = self._profile, None
        if profile is not None:
            self._halt(profile)

    def close(self) -> None:
        """Stop, where it still goes on, and let go of the trace."""
        if self._profile is not None and self._is_mine():
            self._fail(DeclinedError("the process ended meanwhile"))
        super().close()

    def _is_mine(self) -> bool:
        """Whether the calling thread is the one that began the profiler."""
        return self._thread == get_ident()

    def _begin(self, step: int) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise DeclinedError("it has not imported PyTorch")
        if profiled(torch):
            raise DeclinedError("the job profiles itself")
        began = time.monotonic()
        profiler = torch.profiler
        kinds = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            kinds.append(profiler.ProfilerActivity.CUDA)
        profile = profiler.profile(activities=kinds)
        self._thread, self._runs = get_ident(), True
        self._give_way()
        try:
            profile.start()
        except Exception:
            self._give_back()
            raise
        self._profile = profile
        self._first, self._left = step + 1, self._steps
        self._before = time.monotonic()
        self._starting = self._before - began
        self._until = self._before + LONGEST

    def _end(self, step: int) -> None:
        ended = time.monotonic()
        profile, self._profile = self._profile, None
        self._halt(profile)
        events = len(profile.profiler.kineto_results.events())
        if events > MAX_EVENTS:
            raise DeclinedError(f"{events} events are too many: ask for fewer steps")
        if free_bytes() < SPARE * EVENT * events:
            raise DeclinedError("shared memory (/dev/shm) has too little room for the trace")
        file = _exported(profile)
        self.hand_over(
            file,
            first=self._first,
            last=step,
            profiled=ended - self._before,
            starting=self._starting,
            writing=time.monotonic() - ended,
        )

    def _give_way(self) -> None:
        """Have the job's own profiler, should it begin, find none that is running."""
        module: Any = sys.modules.get("torch.autograd.profiler")
        for name in _STARTS:
            start = getattr(module, name, None)
            if start is not None:
                self._replaced[name] = start
                setattr(module, name, self._instead(start))

    def _instead(self, start: Any) -> Any:
        def begins(*args: Any, **more: Any) -> Any:
            if self._runs and self._is_mine():
                if self._profile is not None:  # else it is this one that begins or ends
                    self._fail(DeclinedError(BEGAN))
            elif self._runs:
                self._why = BEGAN
                if not self._waited():
                    return None
            return start(*args, **more)

        return begins

    def _waited(self) -> bool:
        """Wait in another thread until this profiler is gone. False where it is not."""
        until = time.monotonic() + PATIENCE
        while self._runs and time.monotonic() < until:
            time.sleep(0.01)
        return not self._runs

    def _halt(self, profile: Any) -> None:
        """End the profiler, by the thread that began it."""
        try:
            profile.stop()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        module: Any = sys.modules.get("torch.autograd.profiler")
        for name, start in self._replaced.items():
            setattr(module, name, start)
        self._replaced, self._runs = {}, False


def profiled(torch: Any) -> bool:
    """Whether the job profiles itself: in this thread, or in any other, of which only PyTorch's Python code knows."""
    anywhere = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    return bool(torch.autograd._profiler_enabled() or anywhere)


def _exported(profile: Any) -> OwnFile:
    """The trace in a file whose name is gone. PyTorch writes it in a folder that only this user may enter. Raises OSError."""
    own = f"{PREFIX}{os.getpid()}-{start_ticks()}{TRACE}{os.urandom(8).hex()}"
    folder = os.path.join(FOLDER, own)
    os.mkdir(folder, 0o700)
    path, lock = os.path.join(folder, TRACE_FILE), OwnFile(-1)
    try:
        lock = OwnFile(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shielded(_signal.SIGXFSZ, profile.export_chrome_trace, path)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.fchmod(fd, 0o600)
        return OwnFile(fd)
    finally:
        lock.close()
        remove(path)
        try:
            os.rmdir(folder)
        except OSError as error:
            pass_on(error)
