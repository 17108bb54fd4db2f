"""One capture: everything this node can tell of one job at one moment, without stopping anybody.

The ladder, per rank and child: /proc first, then `py-spy --nonblocking`, then further cheap samples while the watch
lasts, and only then native stacks, for the few processes where they decide something and every thread can be
interrupted. What could not be had becomes a gap. Nothing here raises for what a process does.
"""

import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from mldebug import __version__
from mldebug.diagnosis import wants_native
from mldebug.judging.classes import STORAGE_WAITS
from mldebug.model import (
    Gap,
    Job,
    LogTail,
    NodeCapture,
    ProcessCapture,
    ProcessState,
    RankCapture,
    RankIdentity,
    Remark,
)
from mldebug.movement import Sample, movement
from mldebug_agents.capturing.blocked import blocked_on
from mldebug_agents.capturing.guard import restore
from mldebug_agents.capturing.pyspy import FORBIDDEN, Dump, PySpy
from mldebug_agents.capturing.pystack import find_pystack, second_opinion
from mldebug_agents.capturing.sourceline import source_line
from mldebug_agents.host import Host
from mldebug_agents.logs.tail import log_of, read_log
from mldebug_agents.reader import Reader, Unreadable
from mldebug_agents.sources.ranks import Child

MAX_SAMPLES = 8
MAX_CHILDREN = 64
DUMP_TIMEOUT = 5.0
NATIVE_TIMEOUT = 15.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a capture is taken; the `capture` section of the config says the same to people."""

    watch: float = 2.0  # seconds over which further samples are taken; 0: one look only
    native: str = "auto"  # auto, never, always
    workers: int = 0  # 0: one per core, at most 4
    deadline: float = 30.0


class Target(NamedTuple):
    """One process to look at, and the rank it belongs to."""

    pid: int
    rank: int
    kind: str
    name: str
    python: bool
    start_ticks: int = 0


Pending = tuple[Target, float, ProcessState | None, "Future[Dump] | None"]


class Capturer:
    """Takes captures of jobs on this node. One at a time; the pools live as long as one capture."""

    def __init__(
        self,
        host: Host,
        reader: Reader,
        pyspy: PySpy,
        node: str,
        settings: Settings | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.host = host
        self.reader = reader
        self.pyspy = pyspy
        self.node = node
        self.settings = settings or Settings()
        self.sleep = sleep

    def capture(
        self,
        job: Job,
        children: dict[int, tuple[Child, ...]],
        remarks: tuple[Remark, ...] = (),
        gaps: tuple[Gap, ...] = (),
    ) -> NodeCapture:
        """Capture one job: all ranks and their children, in parallel, within the deadline."""
        taken_at, started = self.host.clock(), time.monotonic()
        session = _Session(self, job, children, started)
        with ThreadPoolExecutor(self.workers()) as pool:
            session.look(pool)
            session.watch(pool)
            taken = session.node_capture(taken_at, remarks, gaps)
            taken = session.add_native(pool, taken)
        duration = round(time.monotonic() - started, 3)
        return msgspec.structs.replace(taken, duration_seconds=duration)

    def workers(self) -> int:
        """How many processes are dumped at once."""
        return self.settings.workers or min(4, os.cpu_count() or 1)


class _Session:
    """The state of one running capture."""

    def __init__(
        self, capturer: Capturer, job: Job, children: dict[int, tuple[Child, ...]], started: float
    ) -> None:
        self.c = capturer
        self.job = job
        self.started = started
        self.gaps: list[Gap] = []
        self.targets = list(self._targets(job.ranks, children))
        self.states: dict[int, ProcessState | None] = {}
        self.dumps: dict[int, Dump] = {}
        self.samples: dict[int, list[Sample]] = {}

    def _targets(
        self, ranks: Iterable[RankIdentity], children: dict[int, tuple[Child, ...]]
    ) -> Iterable[Target]:
        for rank in ranks:
            yield Target(rank.pid, rank.rank, "rank", "", True, rank.start_ticks)
            mine = children.get(rank.pid, ())
            for child in mine[:MAX_CHILDREN]:
                yield Target(child.pid, rank.rank, child.kind, child.name, child.python)
            if len(mine) > MAX_CHILDREN:
                left = len(mine) - MAX_CHILDREN
                self.gaps.append(
                    Gap(what="children", reason=f"{left} more were not captured", rank=rank.rank)
                )

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.started + self.c.settings.deadline - time.monotonic()

    # --- rungs 1 and 2 -----------------------------------------------------------------------------

    def look(self, pool: ThreadPoolExecutor) -> None:
        """First pass: /proc of everybody, then everybody's Python stacks at once."""
        for target in self.targets:
            state = self.c.host.process_state(target.pid, files=True, kernel_stacks=True)
            if state and target.start_ticks and state.start_ticks != target.start_ticks:
                state = None  # the pid belongs to somebody else by now
            self.states[target.pid] = state
        self._sample(pool, first=True)

    def watch(self, pool: ThreadPoolExecutor) -> None:
        """Further samples, evenly spread over the watch."""
        span = min(self.c.settings.watch, max(0.0, self.left() - 1.0))
        begun = time.monotonic()
        for number in range(1, MAX_SAMPLES if span > 0 else 1):
            due = begun + span * number / (MAX_SAMPLES - 1)
            self.c.sleep(max(0.0, due - time.monotonic()))
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
            self.samples.setdefault(target.pid, []).append(Sample(at, state, stacks))

    def _start_sample(self, pool: ThreadPoolExecutor, target: Target, *, first: bool) -> Pending:
        state = self.states[target.pid] if first else self.c.host.process_state(target.pid)
        at, future = time.monotonic(), None
        if self._dumpable(target):
            future = pool.submit(self.c.pyspy.dump, target.pid, timeout=DUMP_TIMEOUT)
        return target, at, state, future

    def _dumpable(self, target: Target) -> bool:
        """Zombies have no stack; what once failed for good is not asked again."""
        state, dump = self.states[target.pid], self.dumps.get(target.pid)
        return (
            target.python
            and state is not None
            and state.state not in "ZX"
            and not (dump and dump.failure)
        )

    # --- what was seen, as values ------------------------------------------------------------------

    def node_capture(
        self, taken_at: float, remarks: tuple[Remark, ...], gaps: tuple[Gap, ...]
    ) -> NodeCapture:
        """Join the parts; the log tails and source lines are read here."""
        processes = {target.pid: self._process(target) for target in self.targets}
        ranks = tuple(self._rank(identity, processes) for identity in self.job.ranks)
        return NodeCapture(
            node=self.c.node,
            taken_at=taken_at,
            job=self.job,
            ranks=ranks,
            remarks=self._own(remarks),
            gaps=(*gaps, *self.gaps),
            versions={
                "mldebug": __version__,
                "python": platform.python_version(),
                "kernel": platform.release(),
            },
        )

    def _own(self, remarks: tuple[Remark, ...]) -> tuple[Remark, ...]:
        """What is odd about this job, or about no process in particular."""
        mine = set(self.states)
        return tuple(one for one in remarks if not one.pids or mine.intersection(one.pids))

    def _process(self, target: Target) -> ProcessCapture:
        state, dump = self.states[target.pid], self.dumps.get(target.pid, Dump())
        dump = self._second_opinion(target, dump)
        self._note_failure(target, state, dump)
        return ProcessCapture(
            pid=target.pid,
            name=target.name or (state.name if state else ""),
            kind=target.kind,
            python=target.python and not dump.not_python,
            state=state,
            stacks=dump.stacks,
            movement=movement(target.pid, self.samples.get(target.pid, [])),
            source_line=source_line(self.c.host, self.c.reader, target.pid, dump.stacks),
            blocked_on=blocked_on(state, self._memory, self.c.host.mount_of),
        )

    def _second_opinion(self, target: Target, dump: Dump) -> Dump:
        """Where py-spy could not read a living Python process for another reason than rights: ask pystack."""
        if not dump.failure or dump.not_python or dump.gone or dump.failure == FORBIDDEN:
            return dump
        stacks = second_opinion(self.c.pyspy.starter, find_pystack(), target.pid, DUMP_TIMEOUT)
        if not stacks:
            return dump
        self._gap(
            "py-spy stack", f"{dump.failure}; the stack shown is pystack's", target, dump.way_out
        )
        return Dump(stacks=stacks)

    def _note_failure(self, target: Target, state: ProcessState | None, dump: Dump) -> None:
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

    def _gap(self, what: str, reason: str, target: Target, way_out: str = "") -> None:
        self.gaps.append(
            Gap(what=what, reason=reason, rank=target.rank, pid=target.pid, way_out=way_out)
        )

    def _memory(self, pid: int, address: int, size: int) -> bytes:
        data = self.c.reader.read_memory(pid, address, max_bytes=size)
        return b"" if isinstance(data, Unreadable) else data

    def _rank(self, identity: RankIdentity, processes: dict[int, ProcessCapture]) -> RankCapture:
        mine = [
            target
            for target in self.targets
            if target.rank == identity.rank and target.kind != "rank"
        ]
        return RankCapture(
            identity=identity,
            process=processes[identity.pid],
            children=tuple(processes[target.pid] for target in mine),
            log=self._log(identity),
        )

    def _log(self, identity: RankIdentity) -> LogTail | None:
        launcher = self._launcher_state(identity.launcher_pid)
        place = log_of([self.states.get(identity.pid), launcher])
        if place is None:
            return None
        tail = read_log(self.c.reader, *place)
        if isinstance(tail, Unreadable):
            self.gaps.append(
                Gap(what="log", reason=f"{place[1].target}: {tail.reason}", rank=identity.rank)
            )
            return None
        return tail

    def _launcher_state(self, pid: int | None) -> ProcessState | None:
        if pid is None:
            return None
        if pid not in self.states:
            self.states[pid] = self.c.host.process_state(pid, files=True)
        return self.states[pid]

    # --- rung 3 ------------------------------------------------------------------------------------

    def add_native(self, pool: ThreadPoolExecutor, taken: NodeCapture) -> NodeCapture:
        """Native stacks for the ranks where they decide something (or all, if asked), where that is safe."""
        policy = self.c.settings.native
        wanted = (
            set(wants_native(taken))
            if policy == "auto"
            else {rank.identity.rank for rank in taken.ranks}
        )
        if policy == "never" or not wanted:
            return taken
        asked = [rank for rank in taken.ranks if rank.identity.rank in wanted]
        futures = {rank.identity.rank: pool.submit(self._native, rank, policy) for rank in asked}
        found = {rank: future.result() for rank, future in futures.items()}
        ranks = tuple(_with_native(rank, found.get(rank.identity.rank)) for rank in taken.ranks)
        gaps = tuple(dict.fromkeys((*taken.gaps, *self.gaps)))
        return msgspec.structs.replace(taken, ranks=ranks, gaps=gaps)

    def _native(self, rank: RankCapture, policy: str) -> Dump | None:
        pid = rank.identity.pid
        before = self.c.host.process_state(pid)
        refusal = unsafe_to_stop(before)
        if refusal or before is None or self.left() < 1.0:
            if policy == "always":
                reason = f"not taken: {refusal or 'no time left'}"
                self.gaps.append(
                    Gap(what="native stack", reason=reason, rank=rank.identity.rank, pid=pid)
                )
            return None
        dump = self.c.pyspy.dump(pid, native=True, timeout=min(NATIVE_TIMEOUT, self.left()))
        if dump.killed and (gap := restore(before, self.c.host.process_state(pid))):
            self.gaps.append(gap)
        if dump.failure:
            gap = Gap(
                what="native stack",
                reason=dump.failure,
                rank=rank.identity.rank,
                pid=pid,
                way_out=dump.way_out,
            )
            self.gaps.append(gap)
        return dump


def unsafe_to_stop(state: ProcessState | None) -> str:
    """Why a blocking dump may hang on this process or harm it; "" where every thread can be interrupted."""
    if state is None:
        return "the process is gone"
    if state.tracer_pid:
        return f"another tracer (pid {state.tracer_pid}) holds it"
    for thread in state.threads:
        if thread.state not in ("R", "S"):
            return f"thread {thread.tid} is in state {thread.state}"
        if STORAGE_WAITS.fullmatch(thread.wchan):
            return f"thread {thread.tid} waits for storage ({thread.wchan})"
    return "" if state.threads else "its threads cannot be read"


def _with_native(rank: RankCapture, dump: Dump | None) -> RankCapture:
    if dump is None or dump.failure:
        return rank
    process = msgspec.structs.replace(rank.process, native=dump.stacks)
    return msgspec.structs.replace(rank, process=process)
