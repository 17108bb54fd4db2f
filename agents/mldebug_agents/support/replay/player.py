"""Plays a recording, event by event, through the parts that judge a live node: counters, GPU fingerprints, kernel log, health.

Starts no process and opens no file. Runs are as they were recorded; their GPUs are judged again.

In place of the node it reads the clock, kernel log, GPU readings and stored state of the recording.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from mldebug import __version__
from mldebug.config.schema import Config
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.model import Gap
from mldebug.hardware.gpu.counters import Counters
from mldebug.hardware.gpu.expected import ExpectedGpus
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import GpuReading, LostGpu, NodeGpus, NodeWatch
from mldebug.hardware.kernel_log.records import parse_record
from mldebug.stall.signals import RankLook, RunLook
from mldebug.status.snapshot import RunState, Snapshot, job_of
from mldebug_agents.hardware.gpu.monitor import EXPECTED
from mldebug_agents.hardware.gpu.reads import GpuNews, GpuOrder
from mldebug_agents.hardware.kernel_log import KernelLogSource, KernelNews
from mldebug_agents.hardware.monitor import HardwareMonitor
from mldebug_agents.support.bundle.layout import ClockPair, GpuReadFailure
from mldebug_agents.support.replay.recording import Recording
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.job_watch import JobLook


class RecordedClock:
    """The unix and the monotonic clock of the recorded node, at one moment that is set by the replay."""

    def __init__(self, clocks: ClockPair, at: float) -> None:
        self._clocks = clocks
        self.at = at

    def advance(self, at: float) -> None:
        """Move to this unix time; an earlier one has no effect."""
        self.at = max(self.at, at)

    def unix(self) -> float:
        """The recorded unix time in seconds."""
        return self.at

    def monotonic(self) -> float:
        """Seconds since boot, as the kernel's log counts them."""
        return self._clocks.monotonic + self.at - self._clocks.unix


NO_LOG = Gap(
    what="kernel log",
    reason="the recording has none",
    way_out="see the gaps in its manifest.json, and record as root",
)


class RecordedKernelLog(KernelLogSource):
    """A kernel log that is read from a recording instead of a device; it returns no record from later than the replay's clock."""

    def __init__(self, records: Sequence[bytes] | None, clock: RecordedClock) -> None:
        """None: the log could not be read where it was recorded."""
        super().__init__("", unix=clock.unix, monotonic=clock.monotonic)
        parsed = [(parse_record(one), one) for one in records or ()]
        self._waiting = [(record.seconds, one) for record, one in parsed if record is not None]
        self._next = 0
        self._none = records is None
        self._recorded = clock

    def drain(self, news: KernelNews) -> KernelNews:
        """Read the log to its end and return the last result. `news`: the result of the read before, which may have stopped early."""
        while news.behind:
            news = self.read()
        return news

    def _open(self) -> Gap | None:
        return NO_LOG if self._none else None

    def _records(self) -> Iterator[bytes]:
        now = self._recorded.monotonic()
        while self._next < len(self._waiting) and self._waiting[self._next][0] <= now:
            self._next += 1
            yield self._waiting[self._next - 1][1]


RECORDED = "as recorded"


class RecordedReads:
    """Replaces `hardware.gpu.reads.GpuReads` in a replay. `counted`: the counters in the recording never go back, so they need
    no correction.

    `view`: which GPUs the recorded agent was limited to; another value would make the monitor learn the GPUs again.
    """

    def __init__(self, *, counted: bool, view: str = "") -> None:
        self._view = view
        self._counters = None if counted else Counters()

    def watch(self, read: NodeWatch) -> GpuNews:
        """A quick reading of the recording, in the form that the GPU monitor takes."""
        return GpuNews(watch=read)

    def full(self, read: NodeGpus, runs: Mapping[str, RunState]) -> GpuNews:
        """A full reading of the recording, with the GPU that the recorded status names for each rank."""
        full = self._counters.take(read) if self._counters else read
        joined = {id: _joined(run, full) for id, run in runs.items()}
        return GpuNews(full=full, joined=joined, view=self._view)


def _joined(run: RunState, full: NodeGpus) -> RankGpuMap:
    gpus: tuple[GpuReading | LostGpu, ...] = (*full.lost, *full.gpus)
    here, guess = {one.uuid: one for one in gpus}, JoinEvidence.ENVIRONMENT
    ranks = tuple(
        RankGpu(
            rank=rank,
            uuid=uuid,
            index=here[uuid].index,
            bus_id=here[uuid].bus_id,
            evidence=guess if rank in run.gpus_guessed else JoinEvidence.COMPUTE_PROCESS,
            words=RECORDED,
        )
        for rank, uuid in sorted(run.gpus.items())
        if uuid in here
    )
    joined = {one.rank for one in ranks}
    return RankGpuMap(
        ranks=ranks, unknown={rank: RECORDED for rank in run.ranks if rank not in joined}
    )


class RecordedStore:
    """The state that the recorded agent had stored when the recording began. Changes are lost when the replay ends."""

    opened = True

    def __init__(self, memos: dict[str, bytes]) -> None:
        self._memos = dict(memos)

    def memo(self, name: str) -> bytes:
        """Return the bytes stored under that name; b"" where there are none."""
        return self._memos.get(name, b"")

    def remember(self, name: str, value: bytes) -> None:
        """Store a value for the duration of the replay; an empty one deletes it."""
        self._memos[name] = value
        if not value:
            del self._memos[name]

    def memos(self, beginning: str) -> tuple[str, ...]:
        """The names of recorded values that begin with `beginning`."""
        return tuple(name for name in self._memos if name.startswith(beginning))


Event = Snapshot | NodeGpus | NodeWatch | GpuReadFailure
ORDER = (Snapshot, NodeGpus, NodeWatch, GpuReadFailure)  # of what was recorded at the same time


class Player:
    """Plays a recording through once, as the agent would have seen it. `words`: how the status calls the recording, for people. Raises
    EvidenceError where nothing can be played.
    """

    def __init__(self, recording: Recording, config: Config, words: str = "a recording") -> None:
        self._recording, self._config, self._words = recording, config, words
        self.events = _timeline(recording)
        if not self.events:
            raise EvidenceError(
                "the recording holds nothing that could be played", "see the gaps in manifest.json"
            )
        self.clock = RecordedClock(recording.manifest.clocks, self.events[0].at)
        self._kernel = RecordedKernelLog(recording.kernel, self.clock)
        self._reads = RecordedReads(
            counted=recording.manifest.counted, view=_view(recording.memory)
        )
        kernel_pids = recording.manifest.kernel_pids
        memory = RecordedStore(recording.memory)
        self._hardware = HardwareMonitor(
            recording.node, memory, {}, kernel_pids=kernel_pids, now=self.clock.unix
        )
        began = recording.statuses[0] if recording.statuses else None
        self._status = began or Snapshot(
            node=recording.node, at=self.clock.at, started_at=self.clock.at
        )
        self._started = {rank.pid: rank.started_at for job in recording.jobs for rank in job.ranks}
        self.records = 0  # of the kernel

    def play(self, event: Event) -> None:
        """Apply one recorded event and move the clock to its time."""
        self.clock.advance(event.at)
        if isinstance(event, Snapshot):
            self._status = event
        elif isinstance(event, NodeGpus):
            self._deliver("gpus", GpuOrder({}), self._reads.full(event, self._runs()))
        elif isinstance(event, NodeWatch):
            self._deliver("gpus", GpuOrder(), self._reads.watch(event))
            self._look()
        else:
            order = GpuOrder({} if event.read == "full" else None)
            self._deliver("gpus", order, None, MldebugError(event.error))
        self._read_kernel()

    def snapshot(self) -> Snapshot:
        """Return the snapshot that an agent would publish now; `at` is the time in the recording."""
        recorded = msgspec.structs.replace(
            self._status,
            at=self.clock.at,
            replay=self._words,
            version=self._status.version or __version__,
        )
        shown = self._hardware.show(recorded)
        return msgspec.structs.replace(shown, gaps=tuple(dict.fromkeys(shown.gaps)))

    # --- inside ------------------------------------------------------------------------------------

    def _runs(self) -> dict[str, RunState]:
        return {run.id: run for run in self._status.runs}

    def _deliver(self, worker: str, order: object, value: object, error: Exception | None = None) -> None:  # fmt: skip
        jobs = [job_of(run, self._started) for run in self._status.runs]
        self._hardware.on_result(Result(worker, order, value, error), jobs, {}, self._config)

    def _read_kernel(self) -> None:
        news = self._kernel.drain(self._kernel.read(self._hardware.take_xids()))
        self.records = news.counts.records
        self._deliver("kernel", (), news)

    def _look(self) -> None:
        """Feed each run to the GPU fingerprint, which learns from every look."""
        for run in self._status.runs:
            ranks = tuple(RankLook(rank=rank) for rank in run.ranks)
            look = RunLook(at=time.monotonic(), run=run.id, attempt=run.attempt, ranks=ranks)
            self._hardware.complete(JobLook(job=job_of(run, self._started), look=look))


def _view(memory: Mapping[str, bytes]) -> str:
    """What the recorded agent saw of the GPUs, as it remembered it."""
    try:
        return msgspec.json.decode(memory.get(EXPECTED, b"{}"), type=ExpectedGpus).view
    except msgspec.MsgspecError:
        return ""  # recorded by another version


def _timeline(recording: Recording) -> list[Event]:
    """Everything in its order."""
    parts: tuple[Sequence[Event], ...] = (
        recording.statuses,
        recording.full,
        recording.watch,
        recording.failed,
    )
    events = [one for part in parts for one in part]
    return sorted(events, key=lambda one: (one.at, ORDER.index(type(one))))
