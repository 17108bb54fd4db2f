"""One capture: all evidence of one job on this node at one moment.

For each rank and child process it reads /proc, then `py-spy --nonblocking`, then further such
samples for some seconds. Native stacks come last; they stop a process for a moment, so they are
taken only of the few ranks where they decide something and every thread can be interrupted. What
could not be read becomes a gap. Nothing here raises for what a process does.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from mldebug.capture.flight_recorder.entries import within
from mldebug.core.model import (
    FlightRecord,
    Gap,
    Job,
    LockHolder,
    LogTail,
    NodeCapture,
    ProcessCapture,
    ProcessState,
    RankCapture,
    RankIdentity,
    Remark,
)
from mldebug.core.redact import clean
from mldebug_agents.capture.nccl_ras.child import RasReply
from mldebug_agents.capture.nccl_ras.client import DEADLINE as RAS_TIMEOUT
from mldebug_agents.capture.nccl_ras.client import RasBackgroundQuery
from mldebug_agents.capture.process_captures import (
    DUMP_TIMEOUT,
    CaptureTarget,
    ProcessCaptures,
    Sampling,
    few_sources,
)
from mldebug_agents.capture.stacks.native import NativeStacks
from mldebug_agents.capture.stacks.pyspy import PySpy
from mldebug_agents.jobs.hook.flight_recorder import HookFlightRecords
from mldebug_agents.jobs.hook.records import read_hook_summaries
from mldebug_agents.jobs.logs.tail import log_of, read_log
from mldebug_agents.jobs.ranks.discovery import RankChild
from mldebug_agents.system.context import versions
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.file_locks import FileLocks
from mldebug_agents.system.reader import Reader, Unreadable

log = logging.getLogger("mldebug")

MAX_CHILDREN = 64
DEFECT = "report it as a defect of mldebug"
FLIGHT_TIMEOUT = 2.0  # seconds for the Flight Recorders of all ranks


class AddFlightRecorders(Protocol):
    """A function that reads the PyTorch Flight Recorders of the ranks in the capture `taken`. It returns that capture with what it could read, and with a
    gap, which tells the reason, for each rank that it could not read.

    `left()`: seconds until the capture's deadline. `stalled`: the job is known to stand still, so ways that cost a rank something are allowed.
    `resumed`: it already stood still under an earlier agent. That one may have asked the ranks, so they are not asked a second time.
    """

    def __call__(
        self, taken: NodeCapture, left: Callable[[], float], *, stalled: bool, resumed: bool
    ) -> NodeCapture: ...


class CaptureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a capture is taken: the `capture` section of the configuration. `watch` and `deadline` are in seconds."""

    watch: float = 2.0  # seconds over which further samples are taken; 0: one look only
    native: str = "auto"  # auto, never, always
    workers: int = 0  # 0: one per core, at most 4
    deadline: float = 30.0


class Capturer:
    """Takes captures of jobs on this node. Each capture has a thread pool of its own."""

    def __init__(
        self,
        host: Host,
        reader: Reader,
        pyspy: PySpy,
        node: str,
        settings: CaptureSettings | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        flights: Callable[[Sequence[RankIdentity], float], HookFlightRecords] = lambda *_: (
            HookFlightRecords()
        ),
        more_flights: AddFlightRecorders | None = None,
        ras: Callable[[Job, float], RasReply] | None = None,
        traces: Callable[[NodeCapture, Callable[[], float]], NodeCapture] = lambda capture, _: (
            capture
        ),
    ) -> None:
        """`flights` asks these ranks for their Flight Recorders by the hook, `ras` asks NCCL RAS about a job; both take a limit in seconds.

        `more_flights` tries other ways to get Flight Recorders, `traces` adds call traces; both return the capture with more in it.
        """
        self.host = host
        self.reader = reader
        self.pyspy = pyspy
        self.node = node
        self.settings = settings or CaptureSettings()
        self.sleep = sleep
        self.flights = flights
        self.more_flights = more_flights
        self.ras = ras
        self.traces = traces

    def capture(
        self,
        job: Job,
        children: dict[int, tuple[RankChild, ...]],
        remarks: tuple[Remark, ...] = (),
        gaps: tuple[Gap, ...] = (),
        *,
        quiet: float | None = None,
        resumed: bool = False,
    ) -> NodeCapture:
        """Capture one job: all its ranks on this node and their children, in parallel, within the deadline.
        Of a job that waits for nodes only the launcher's stack is taken.

        `children`: of each rank, by its pid. `quiet`: seconds for which the job is known to stand
        still, None: not known. `resumed`: an earlier agent knew that it stands, and may have asked
        its ranks.
        """
        taken_at, started = self.host.clock(), time.monotonic()
        if job.waits is not None:
            return self._launcher(job, taken_at, gaps)
        session = _Session(self, job, children, started)
        ras = RasBackgroundQuery(self.ras, job, min(RAS_TIMEOUT, self.settings.deadline))
        with ThreadPoolExecutor(self.workers()) as pool:
            session.sampling.look(pool)
            session.sampling.watch(pool, self.settings.watch)
            session.ask_flights()
            taken = session.node_capture(taken_at, quiet or 0.0, remarks, gaps)
            native = NativeStacks(self.host, self.pyspy, self.settings.native, session.left)
            taken = native.add(pool, taken)
            taken = self._with_more_flights(
                taken, session.left, stalled=quiet is not None, resumed=resumed
            )
            taken = within(self.traces(taken, session.left))
        answer, refused = ras.take(max(0.0, session.left()), session.uses_gpus)
        taken = msgspec.structs.replace(taken, ras=answer, gaps=(*taken.gaps, *refused))
        duration = round(time.monotonic() - started, 3)
        return msgspec.structs.replace(taken, duration_seconds=duration)

    def _launcher(self, job: Job, taken_at: float, gaps: tuple[Gap, ...]) -> NodeCapture:
        """The launcher's stack, of a job that has no rank yet."""
        started, pid = time.monotonic(), job.launcher_pid or 0
        state = self.host.process_state(pid, files=True)
        dump = self.pyspy.dump(pid, timeout=DUMP_TIMEOUT)
        why = Gap(what="launcher's stack", reason=dump.failure, pid=pid, way_out=dump.way_out)
        return NodeCapture(
            node=self.node,
            taken_at=taken_at,
            duration_seconds=round(time.monotonic() - started, 3),
            quiet_seconds=max(0.0, taken_at - job.started_at),
            job=job,
            launcher=ProcessCapture(pid=pid, kind="launcher", state=state, stacks=dump.stacks),
            gaps=(*gaps, *((why,) if dump.failure else ())),
            versions=versions(),
        )

    def _with_more_flights(
        self, taken: NodeCapture, left: Callable[[], float], *, stalled: bool, resumed: bool
    ) -> NodeCapture:
        """After the native stacks, which tell who waits. An error of our own there must not cost the capture."""
        if self.more_flights is None:
            return taken
        try:
            return self.more_flights(taken, left, stalled=stalled, resumed=resumed)
        except Exception as error:
            log.exception("the Flight Recorders of %s could not be had", taken.job.id)
            reason = clean(f"{type(error).__name__}: {error}", 200)
            gap = Gap(what="Flight Recorder", reason=reason, way_out=DEFECT)
            return msgspec.structs.replace(taken, gaps=(*taken.gaps, gap))

    def workers(self) -> int:
        """How many processes a capture dumps with py-spy at the same time."""
        return self.settings.workers or min(4, os.cpu_count() or 1)


class _Session:
    """One running capture: its target processes, and what was read of them."""

    def __init__(
        self,
        capturer: Capturer,
        job: Job,
        children: dict[int, tuple[RankChild, ...]],
        started: float,
    ) -> None:
        self.c = capturer
        self.job = job
        self.started = started
        self.gaps: list[Gap] = []
        self.flights: dict[int, FlightRecord] = {}
        # ranks first: where there is no time for all, children go without
        self.targets = sorted(self._targets(job.ranks, children), key=lambda it: it.kind != "rank")
        processes = {
            target.pid: LockHolder(pid=target.pid, rank=target.rank, child=target.kind != "rank")
            for target in self.targets
        }
        self.sampling = Sampling(
            capturer.host, capturer.pyspy, self.targets, self.left, capturer.sleep
        )
        locks = FileLocks(capturer.host, capturer.reader, processes)
        self.processes = ProcessCaptures(
            capturer.host, capturer.reader, capturer.pyspy, self.sampling, locks
        )
        self.hook_summaries, refused = read_hook_summaries(
            capturer.host, capturer.reader, job.ranks
        )
        self.gaps.extend(refused)

    def _targets(
        self, ranks: Iterable[RankIdentity], children: dict[int, tuple[RankChild, ...]]
    ) -> Iterable[CaptureTarget]:
        for rank in ranks:
            yield CaptureTarget(rank.pid, rank.rank, "rank", "", True, rank.start_ticks)
            mine = children.get(rank.pid, ())
            for child in mine[:MAX_CHILDREN]:
                yield CaptureTarget(child.pid, rank.rank, child.kind, child.name, child.python)
            if len(mine) > MAX_CHILDREN:
                left = len(mine) - MAX_CHILDREN
                self.gaps.append(
                    Gap(what="children", reason=f"{left} more were not captured", rank=rank.rank)
                )

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.started + self.c.settings.deadline - time.monotonic()

    @property
    def uses_gpus(self) -> bool:
        """Has any of the processes a GPU open?"""
        states = filter(None, self.sampling.states.values())
        return any(file.kind == "gpu" for state in states for file in state.files)

    def ask_flights(self) -> None:
        """The Flight Recorders of all ranks at once, last: what they then wait in, they waited in all the while."""
        answers = self.c.flights(self.job.ranks, min(FLIGHT_TIMEOUT, max(0.0, self.left())))
        self.flights = answers.flights
        self.gaps.extend(answers.gaps)

    # --- what was read, as values ------------------------------------------------------------------

    def node_capture(
        self, taken_at: float, quiet: float, remarks: tuple[Remark, ...], gaps: tuple[Gap, ...]
    ) -> NodeCapture:
        """Join the parts; the log tails and source lines are read here."""
        processes = few_sources({target.pid: self.processes.of(target) for target in self.targets})
        self.gaps.extend(self.processes.gaps)
        ranks = tuple(self._rank(identity, processes) for identity in self.job.ranks)
        return NodeCapture(
            node=self.c.node,
            taken_at=taken_at,
            quiet_seconds=quiet,
            job=self.job,
            ranks=ranks,
            remarks=self._own(remarks),
            gaps=(*filter(self._is_mine, gaps), *self.gaps),
            versions=versions(),
        )

    def _is_mine(self, gap: Gap) -> bool:
        """Whether it is about this job, a process of its user, or none in particular: its log may be written by who reads its pipes."""
        if gap.pid is None or gap.pid in self.sampling.states or gap.pid == self.job.launcher_pid:
            return True
        return self.c.host.status(gap.pid).uids[:1] == (self.job.uid,)

    def _own(self, remarks: tuple[Remark, ...]) -> tuple[Remark, ...]:
        """The remarks on processes of this job, and those on no process in particular."""
        mine = set(self.sampling.states)
        return tuple(
            remark for remark in remarks if not remark.pids or mine.intersection(remark.pids)
        )

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
            flight=self.flights.get(identity.rank),
            hook=self.hook_summaries.get(identity.rank),
        )

    def _log(self, identity: RankIdentity) -> LogTail | None:
        launcher = self._launcher_state(identity.launcher_pid)
        place = log_of([self.sampling.states.get(identity.pid), launcher])
        if place is None:
            return None
        pid, file, _ = place
        tail = read_log(self.c.reader, pid, file, self.c.host.rights.of(identity))
        if isinstance(tail, Unreadable):
            self.gaps.append(
                Gap(what="log", reason=f"{place[1].target}: {tail.reason}", rank=identity.rank)
            )
            return None
        return tail

    def _launcher_state(self, pid: int | None) -> ProcessState | None:
        if pid is None:
            return None
        if pid not in self.sampling.states:
            self.sampling.states[pid] = self.c.host.process_state(pid, files=True)
        return self.sampling.states[pid]
