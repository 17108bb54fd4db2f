"""Reads the processes of a capture, and joins what was read of each into one value: state, stacks, movement, and what it works on
or waits for.

/proc and the Python stacks are read once and then repeatedly for some seconds. No process is stopped: py-spy reads without blocking.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from posixpath import dirname
from typing import NamedTuple

from msgspec.structs import replace

from mldebug.capture.frames import principal
from mldebug.capture.movement import ProcessSample, movement, usual_state
from mldebug.core.model import (
    Gap,
    OpenFile,
    ProcessCapture,
    ProcessState,
    SourceExcerpt,
    ThreadState,
)
from mldebug.core.redact import redact, redact_source, safe_line
from mldebug.diagnosis.classify.kernel_state import held_by_profiler, tracer_words
from mldebug_agents.capture.stacks.blocked_call import blocked_on, line_of, source_text, thread_of
from mldebug_agents.capture.stacks.pyspy import CLOSED, FORBIDDEN, Dump, PySpy
from mldebug_agents.capture.stacks.pystack import find_pystack, second_opinion
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.file_locks import FileLocks, command_of
from mldebug_agents.system.reader import Reader, Unreadable

LINK_TIMEOUT = 1.0  # seconds
MOST_ALIKE = 3  # processes at one source line of which each keeps the lines around it
MAX_SHOWN = 200  # characters of a source line
MAX_SAMPLES = 8
DUMP_TIMEOUT = 5.0  # seconds
LATE = "no time was left in the capture"
RELEASE = 0.1  # seconds between two looks at a traced process
RELEASES = 20  # such looks in one capture


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
        self.left = left
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
        span = min(seconds, max(0.0, self.left() - 1.0))
        begun = time.monotonic()
        for number in range(1, MAX_SAMPLES if span > 0 else 1):
            due = begun + span * number / (MAX_SAMPLES - 1)
            self._sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() > begun + span * 2 or self.left() < DUMP_TIMEOUT:
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
            future = pool.submit(self._dump, target.pid)
        return target, at, state, future

    def _dump(self, pid: int) -> Dump:
        """Its stacks, as long as the capture has time: a thousand processes may each let py-spy wait."""
        left = self.left()
        if left <= 0:
            return Dump(failure=LATE)
        return self._pyspy.dump(pid, timeout=min(DUMP_TIMEOUT, left))

    def _dumpable(self, target: CaptureTarget) -> bool:
        """Zombies have no stack; what once failed for good is not asked again."""
        state, dump = self.states[target.pid], self.dumps.get(target.pid)
        return (
            target.python
            and state is not None
            and state.state not in "ZX"
            and not (dump and dump.failure)
        )


def few_sources(processes: dict[int, ProcessCapture]) -> dict[int, ProcessCapture]:
    """Return the captures, with source text only where at most `MOST_ALIKE` processes stand at the line. Ranks that wait
    all stand at the same line, and would all show the same text.
    """
    places = Counter((one.source.path, one.source.line) for one in processes.values() if one.source)
    return {
        pid: replace(one, source=None)
        if one.source and places[one.source.path, one.source.line] > MOST_ALIKE
        else one
        for pid, one in processes.items()
    }


def _without_secrets(source: SourceExcerpt | None) -> SourceExcerpt | None:
    """The lines fit for a report; None where a secret spans several of them."""
    if source is None or redact(whole := "\n".join(source.lines)).count("\n") != whole.count("\n"):
        return None
    lines = tuple(safe_line(line.expandtabs(4), MAX_SHOWN) for line in redact_source(source.lines))
    return replace(source, lines=lines)


class ProcessCaptures:
    """Puts together what was read of single processes (stacks, /proc). `gaps`: what could not be read so far, and why."""

    def __init__(
        self, host: Host, reader: Reader, pyspy: PySpy, sampling: Sampling, locks: FileLocks
    ) -> None:
        self.gaps: list[Gap] = []
        self._host = host
        self._reader = reader
        self._pyspy = pyspy
        self._sampling = sampling
        self._locks = locks
        self._hung: dict[tuple[str, str], Unreadable] = {}  # by mount namespace and folder

    def of(self, target: CaptureTarget) -> ProcessCapture:
        """The capture of one sampled process.

        What is still missing is read now: source line, blocked file, lock, and pystack where py-spy
        failed.
        """
        samples = self._sampling.samples.get(target.pid, [])
        state = usual_state(target.pid, samples) if samples else self._sampling.states[target.pid]
        dump = self._sampling.dumps.get(target.pid, Dump())
        is_late = self._sampling.left() <= 0
        dump = dump if is_late else self._second_opinion(target, dump)
        self._note_failure(target, state, dump)
        stack = principal(dump.stacks, target.pid)
        training = thread_of(state, stack.tid if stack else None) if state and not is_late else None
        source = source_text(self._host, self._reader, None if is_late else state, dump.stacks)
        return ProcessCapture(
            pid=target.pid,
            name=target.name or (state.name if state else ""),
            kind=target.kind,
            python=target.python and not dump.not_python,
            state=state,
            stacks=dump.stacks,
            by_hook=bool(dump.instead),
            movement=movement(target.pid, samples),
            source_line=line_of(source),
            source=_without_secrets(source),
            blocked_on=self._blocked_on(state, training),
            lock=self._locks.wait_of(state, training),
            command=self._command(target, state),
        )

    def _command(self, target: CaptureTarget, state: ProcessState | None) -> str:
        """What a child that is no Python runs: nothing else tells what its rank waits for."""
        if state is None or target.kind == "rank" or target.python:
            return ""
        return command_of(self._host, self._reader, target.pid)

    def _second_opinion(self, target: CaptureTarget, dump: Dump) -> Dump:
        """Where py-spy could not read a living Python process for another reason than rights: ask pystack."""
        if not dump.failure or dump.not_python or dump.gone or dump.failure in (FORBIDDEN, CLOSED):
            return dump
        stacks = second_opinion(self._pyspy.starter, find_pystack(), target.pid, DUMP_TIMEOUT)
        if not stacks:
            return dump
        self._gap(
            "py-spy stack", f"{dump.failure}; the stack shown is pystack's", target, dump.way_out
        )
        return Dump(stacks=stacks)

    def _note_failure(self, target: CaptureTarget, state: ProcessState | None, dump: Dump) -> None:
        if state is not None and held_by_profiler(state):
            self._gap("kernel state", f"held by {tracer_words(state)} all the while", target)
        what = (
            "Python stack"
            if target.kind == "rank"
            else f"Python stack of {target.kind} {target.pid}"
        )
        if state is None:
            self._gap(what, "it exited before it was captured", target)
        elif state.state in "ZX" and target.kind == "rank":
            self._gap(
                what, "it is a zombie: the process has ended, its parent has not reaped it", target
            )
        elif dump.failure and not (dump.not_python and target.kind != "rank"):
            self._gap(what, dump.failure, target, dump.way_out)
        elif dump.instead:
            self._gap("py-spy stack", f"{dump.instead}; the stack shown is the hook's", target)

    def _gap(self, what: str, reason: str, target: CaptureTarget, way_out: str = "") -> None:
        self.gaps.append(
            Gap(what=what, reason=reason, rank=target.rank, pid=target.pid, way_out=way_out)
        )

    def _blocked_on(
        self, state: ProcessState | None, thread: ThreadState | None
    ) -> OpenFile | None:
        host, tid = self._host, thread.tid if thread else None
        return blocked_on(state, self._memory, host.mount_at, host.link, self._is_link, tid)

    def _is_link(self, pid: int, path: str) -> bool | Unreadable:
        """Of many ranks that are blocked in one folder only the first costs a reader that hangs."""
        where = self._host.link(pid, "ns/mnt"), dirname(path)
        if where in self._hung:
            return self._hung[where]
        rights = self._host.rights.now(pid)
        path = f"{self._host.root_of(pid)}{path}"
        answer = self._reader.is_link(path, rights=rights, timeout=LINK_TIMEOUT)
        if isinstance(answer, Unreadable) and answer.stuck:
            self._hung[where] = answer
        return answer

    def _memory(self, pid: int, address: int, size: int) -> bytes:
        data = self._reader.read_memory(pid, address, max_bytes=size)
        return b"" if isinstance(data, Unreadable) else data
