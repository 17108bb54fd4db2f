"""Joins what was read of one process into one value: state, stacks, movement, and what it works on or waits for."""

from collections import Counter
from posixpath import dirname

from msgspec.structs import replace

from mldebug.capture.frames import principal
from mldebug.capture.movement import movement
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
from mldebug_agents.capture.stacks.sampling import DUMP_TIMEOUT, CaptureTarget, Sampling
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.file_locks import FileLocks, command_of
from mldebug_agents.system.reader import Reader, Unreadable

LINK_TIMEOUT = 1.0  # seconds
MOST_ALIKE = 3  # processes at one source line of which each keeps the lines around it
MAX_SHOWN = 200  # characters of a source line


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
        state, dump = (
            self._sampling.states[target.pid],
            self._sampling.dumps.get(target.pid, Dump()),
        )
        dump = self._second_opinion(target, dump)
        self._note_failure(target, state, dump)
        stack = principal(dump.stacks, target.pid)
        training = thread_of(state, stack.tid if stack else None) if state else None
        source = source_text(self._host, self._reader, state, dump.stacks)
        return ProcessCapture(
            pid=target.pid,
            name=target.name or (state.name if state else ""),
            kind=target.kind,
            python=target.python and not dump.not_python,
            state=state,
            stacks=dump.stacks,
            by_hook=bool(dump.instead),
            movement=movement(target.pid, self._sampling.samples.get(target.pid, [])),
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
