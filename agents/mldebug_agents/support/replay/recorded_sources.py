"""The sources that a replay reads in place of the node: clock, kernel log, GPU readings and stored state of the recording."""

from collections.abc import Iterator, Mapping, Sequence

from mldebug.core.model import Gap
from mldebug.hardware.gpu.counters import Counters
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import GpuReading, LostGpu, NodeGpus, NodeWatch
from mldebug.hardware.kernel_log.records import parse_record
from mldebug.status.snapshot import RunState
from mldebug_agents.hardware.gpu.reads import GpuNews
from mldebug_agents.hardware.kernel_log import KernelLogSource, KernelNews
from mldebug_agents.support.bundle.layout import ClockPair


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
        """Read on until the log is at its end, after a round whose result `news` stopped before it."""
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
