"""Plays a recording, event by event, through the parts that judge a live node: counters, GPU fingerprints, kernel log, health.

Starts no process and opens no file. Runs are as they were recorded; their GPUs are judged again.
"""

import time
from collections.abc import Mapping, Sequence

import msgspec

from mldebug import __version__
from mldebug.config.schema import Config
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.hardware.gpu.expected import ExpectedGpus
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch
from mldebug.stall.signals import RankLook, RunLook
from mldebug.status.snapshot import RunState, Snapshot, job_of
from mldebug_agents.hardware.gpu.monitor import EXPECTED
from mldebug_agents.hardware.gpu.reads import GpuOrder
from mldebug_agents.hardware.monitor import HardwareMonitor
from mldebug_agents.support.bundle.layout import GpuReadFailure
from mldebug_agents.support.replay.recorded_sources import (
    RecordedClock,
    RecordedKernelLog,
    RecordedReads,
    RecordedStore,
)
from mldebug_agents.support.replay.recording import Recording
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.job_watch import JobLook

Event = Snapshot | NodeGpus | NodeWatch | GpuReadFailure
ORDER = (Snapshot, NodeGpus, NodeWatch, GpuReadFailure)  # of what was recorded at the same time


class Player:
    """Plays a recording through once, as the agent would have seen it. `words`: what the snapshot says is replayed. Raises
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
