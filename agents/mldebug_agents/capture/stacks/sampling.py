"""The first steps of a capture: reads /proc and the Python stacks of all its processes, once and
then repeatedly for some seconds.

No process is stopped: py-spy reads without blocking.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from mldebug.capture.movement import ProcessSample
from mldebug.core.model import ProcessState
from mldebug_agents.capture.stacks.pyspy import Dump, PySpy
from mldebug_agents.system.host import Host

MAX_SAMPLES = 8
DUMP_TIMEOUT = 5.0
RELEASE, RELEASES = (
    0.1,
    20,
)  # seconds between two looks at a traced process, and how many in one capture


class CaptureTarget(NamedTuple):
    """One process whose stacks are to be taken, and the rank to which it belongs.

    `kind`: rank or the kind of child; `start_ticks`: 0 if not known.
    """

    pid: int
    rank: int
    kind: str
    name: str
    python: bool
    start_ticks: int = 0


Pending = tuple[CaptureTarget, float, ProcessState | None, "Future[Dump] | None"]


class Sampling:
    """Samples of all processes of a capture, by pid: `states` and `dumps` of the first pass, `samples` of every pass."""

    def __init__(
        self,
        host: Host,
        pyspy: PySpy,
        targets: Sequence[CaptureTarget],
        left: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """`left` says the seconds until the deadline of the capture."""
        self.targets = targets
        self.states: dict[int, ProcessState | None] = {}
        self.dumps: dict[int, Dump] = {}
        self.samples: dict[int, list[ProcessSample]] = {}
        self._host = host
        self._pyspy = pyspy
        self._left = left
        self._patience = RELEASES
        self._sleep = sleep

    def look(self, pool: ThreadPoolExecutor) -> None:
        """The first pass: read /proc of all processes, then take all Python stacks in parallel."""
        for target in self.targets:
            state = self._state(target.pid)
            if state and target.start_ticks and state.start_ticks != target.start_ticks:
                state = None  # the pid belongs to somebody else by now
            self.states[target.pid] = state
        self._sample(pool, first=True)

    def _state(self, pid: int) -> ProcessState | None:
        """Of a process that is being traced the kernel shows nothing else; waits, since most tracers let it go in a moment."""
        while True:
            state = self._host.process_state(pid, files=True, kernel_stacks=True)
            if state is None or state.state != "t" or not self._patience:
                return state
            self._patience -= 1
            self._sleep(RELEASE)

    def watch(self, pool: ThreadPoolExecutor, seconds: float) -> None:
        """Take further samples, evenly spread over `seconds`; fewer where the deadline comes near."""
        span = min(seconds, max(0.0, self._left() - 1.0))
        begun = time.monotonic()
        for number in range(1, MAX_SAMPLES if span > 0 else 1):
            due = begun + span * number / (MAX_SAMPLES - 1)
            self._sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() > begun + span * 2 or self._left() < DUMP_TIMEOUT:
                return
            self._sample(pool, first=False)

    def _sample(self, pool: ThreadPoolExecutor, *, first: bool) -> None:
        pending = [self._start_sample(pool, target, first=first) for target in self.targets]
        for target, at, state, future in pending:
            dump = future.result() if future else None
            if first and dump:
                self.dumps[target.pid] = dump
            stacks = dump.stacks if dump and not dump.failure else None
            self.samples.setdefault(target.pid, []).append(ProcessSample(at, state, stacks))

    def _start_sample(
        self, pool: ThreadPoolExecutor, target: CaptureTarget, *, first: bool
    ) -> Pending:
        state = self.states[target.pid] if first else self._host.process_state(target.pid)
        at, future = time.monotonic(), None
        if self._dumpable(target):
            future = pool.submit(self._pyspy.dump, target.pid, timeout=DUMP_TIMEOUT)
        return target, at, state, future

    def _dumpable(self, target: CaptureTarget) -> bool:
        """Zombies have no stack; what once failed for good is not asked again."""
        state, dump = self.states[target.pid], self.dumps.get(target.pid)
        return (
            target.python
            and state is not None
            and state.state not in "ZX"
            and not (dump and dump.failure)
        )
