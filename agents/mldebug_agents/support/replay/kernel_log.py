"""The kernel's log of a recording: its records come when their time has come."""

from collections.abc import Iterator, Sequence

from mldebug.core.model import Gap
from mldebug.hardware.kernel_log.records import parse_record
from mldebug_agents.hardware.kernel_log import KernelLogSource, KernelNews
from mldebug_agents.support.replay.clock import RecordedClock

NO_LOG = Gap(
    what="kernel log",
    reason="the recording has none",
    way_out="see the gaps in its manifest.json, and record as root",
)


class RecordedKernelLog(KernelLogSource):
    """Reads records in place of a device; all else is as it is on a node."""

    def __init__(self, records: Sequence[bytes] | None, clock: RecordedClock) -> None:
        """None: the log could not be read where it was recorded."""
        super().__init__("", unix=clock.unix, monotonic=clock.monotonic)
        told = [(parse_record(one), one) for one in records or ()]
        self._waiting = [(seen.seconds, one) for seen, one in told if seen is not None]
        self._next = 0
        self._none = records is None
        self._recorded = clock

    def drain(self, news: KernelNews) -> KernelNews:
        """Go on from a round that ended before the log did."""
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
