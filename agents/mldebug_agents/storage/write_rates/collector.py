"""Collects how fast ranks write, and which of their files grow."""

from collections.abc import Iterator, Sequence

from mldebug.core.model import Gap, Job
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug.storage.write_rates import (
    TOP,
    RankWriter,
    RankWrites,
    by_mount,
    compare,
    who_fills,
    writer_line,
)
from mldebug_agents.storage.write_rates.reader import WriteReader
from mldebug_agents.system.context import Context

INTERVAL = 15.0  # seconds between two looks
MAX_MOUNTS = 4  # of one rank that are shown in metrics: the fastest


class WriteRateCollector:
    """How fast the ranks of this node write, from two successive readings of /proc/PID/io and of their open files."""

    name = "writers"
    interval = INTERVAL

    def __init__(self, context: Context) -> None:
        self._readings = WriteReader(context.host, context.reader)
        self._before: dict[tuple[str, int], RankWrites] = {}
        self._names: dict[str, str] = {}
        self._uids: dict[str, tuple[int, ...]] = {}
        self.writers: dict[tuple[str, int], RankWriter] = {}

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read what all ranks of these jobs have written, and compare it with the last call. A rank has a rate from its
        second reading on. `now` is not used.
        """
        read = {(one.job, one.rank): one for one in self._readings.read(jobs)}
        known = self.writers
        self.writers = {
            key: compare(self._before[key], one, known[key].total if key in known else 0)
            for key, one in read.items()
            if key in self._before
        }
        self._before = read
        self._names = {job.id: job.name for job in jobs}
        self._uids = {job.id: tuple({job.uid, *(rank.uid for rank in job.ranks)}) for job in jobs}

    def who_fills(self, device: str) -> str:
        """Which rank writes most to the filesystem with this device number (`"major:minor"`), as the last words of an alert's sentence; "" where no rank writes there."""
        return who_fills(self.writers.values(), device, self._names)

    def samples(self) -> Sequence[Measure]:
        """Values for Prometheus: bytes that each rank has written, and by how many bytes/s its open files grow on each mount."""
        return [
            one
            for writer in self.writers.values()
            for one in _measures(writer, self._uids.get(writer.job, (0,)))
        ]

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "writers" of `mldebug status`: one row for each rank that writes, the fastest first. No table where no rank writes."""
        busy = [writer for writer in self.writers.values() if writer.rate >= 1 or writer.growing]
        busy.sort(key=lambda one: -max(one.rate, *by_mount(one).values(), 0.0))
        rows = tuple(self._row(one) for one in busy)
        return {"writers": rows} if rows else {}

    def alarms(self) -> Sequence[StorageAlert]:
        """Always empty: writing is no fault."""
        return ()

    def gaps(self) -> Sequence[Gap]:
        """Always empty: ranks that the agent may not look at are reported where jobs are discovered."""
        return ()

    def _row(self, one: RankWriter) -> Row:
        return _row(one, self._names.get(one.job, one.job), self._uids.get(one.job, (0,)))


def _measures(one: RankWriter, uids: tuple[int, ...]) -> Iterator[Measure]:
    labels = (one.job, str(one.rank))
    yield Measure(metric="mldebug_rank_written_bytes", labels=labels, value=one.total, uids=uids)
    rates = sorted(by_mount(one).items(), key=lambda item: -item[1])
    for mount, rate in rates[:MAX_MOUNTS]:
        yield Measure(
            metric="mldebug_rank_file_growth_bytes_per_second",
            labels=(*labels, mount),
            value=rate,
            uids=uids,
        )


def _row(one: RankWriter, name: str, uids: tuple[int, ...]) -> Row:
    rates = by_mount(one)
    fastest = ", ".join(file.path for file in one.growing[:TOP])
    return {
        "job": one.job,
        "rank": one.rank,
        "bytes_per_second": one.rate,
        "growth_bytes_per_second": sum(rates.values()),
        "mounts": ", ".join(sorted(rates)),
        "files": fastest,
        UIDS: uids_cell(uids),
        "line": writer_line(one, name),
    }
