"""Reads a little of files that ranks read themselves, where nothing else tells how long reads take: FUSE, object stores, GPFS and the
like. Only where `storage.canary.reads` says so.

A reader child of its own does it, with the rights of the rank's user. Where a read does not come back, that child is left, and the
filesystem is not read again before it has: nothing else waits for it.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mldebug.core.model import Gap, Job, RankIdentity
from mldebug.storage.filesystems.fullness import about
from mldebug.storage.filesystems.latency import latency_alerts
from mldebug.storage.filesystems.read_canary import ReadCanaryTrend, middle
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug_agents.storage.dir_sizes.mounts import is_shared
from mldebug_agents.storage.filesystems.mounts import UsedMount
from mldebug_agents.storage.filesystems.state import labels
from mldebug_agents.storage.write_rates.collector import mounts_of
from mldebug_agents.system import procfs
from mldebug_agents.system.context import Context
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.timed_read import TimedRead
from mldebug_agents.system.reader_answers import Unreadable

READS = 3  # of one filesystem in one look
TIMEOUT = 5.0  # seconds for one read
TOGETHER = 12.0  # seconds for all reads of a look; filesystems for which there is no time come first in the next
MAX_MOUNTS = 8  # filesystems that are read
MAX_KEPT = 8  # files of one filesystem that are remembered: the last that ranks had open
MAX_FILES = 256  # descriptors of one process
RECENT = 10.0  # seconds; a child that came since then is seen the next time
STEP = 0x9E3779B97F4A7C15 >> 1  # the golden ratio: blocks all over a file, none twice
WAY_OUT = "an agent of the same user can; for root, mount with -o allow_other"


class DataFile(NamedTuple):
    """A file that a rank had open for reading, as the rank names it."""

    rank: RankIdentity
    path: str


class _Place:
    """What is known of one filesystem."""

    def __init__(self, used: UsedMount, interval: float) -> None:
        self.used = used
        self.files: deque[DataFile] = deque(maxlen=MAX_KEPT)
        self.trend = ReadCanaryTrend(interval)
        self.stuck_since = 0.0  # monotonic seconds; 0: it answers
        self.stuck_at = ""
        self.reason = ""  # why nothing was read


class ReadCanaryCollector:
    """Compares how long small reads take with what is usual on each filesystem that ranks read and the kernel does not count."""

    name = "test_reads"

    def __init__(
        self,
        context: Context,
        mounts: Callable[[], Sequence[UsedMount]],
        counted: Callable[[], Collection[str]],
        moved: Callable[[str, Collection[tuple[str, int]]], float],
    ) -> None:
        """`mounts`: the filesystems that jobs use. `counted`: the devices of those whose operations the kernel counts. `moved`: bytes per
        second that these ranks, named by job and rank, write to a device and read from anywhere.
        """
        self._context, self._mounts, self._counted, self._moved = context, mounts, counted, moved
        self._reader = context.reader.another()
        self._places: dict[str, _Place] = {}  # by device
        self._turn = self._number = 0
        self._now = 0.0

    def close(self) -> None:
        """End the reader child, also where it hangs."""
        self._reader.close()

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return self._context.config.storage.canary.read_interval

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read some blocks of each such filesystem. `now`: unix time."""
        self._now = now
        wanted = self._wanted() if self._context.config.storage.canary.reads else {}
        self._places = {
            device: self._places.get(device) or _Place(used, self.interval)
            for device, used in wanted.items()
        }
        if not self._places:
            return
        self._turn += 1
        for device, used in wanted.items():
            self._places[device].used = used
        self._learn(jobs)
        until = time.monotonic() + TOGETHER
        for place in sorted(self._places.values(), key=lambda one: one.trend.last is not None):
            if time.monotonic() < until - TIMEOUT:
                self._measure(place, jobs, until)

    def _wanted(self) -> dict[str, UsedMount]:
        counted = self._counted()
        found = {
            one.mount.device: one
            for one in self._mounts()
            if one.ranks and is_shared(one.mount.fstype) and one.mount.device not in counted
        }
        return dict(list(found.items())[:MAX_MOUNTS])

    # --- which files -------------------------------------------------------------------------------

    def _learn(self, jobs: Sequence[Job]) -> None:
        """Remember the files there that ranks, or one worker of each in turn, have open for reading; forget those of ranks that have ended."""
        ranks = {rank.pid: rank for job in jobs for rank in job.ranks}
        users = {pid for place in self._places.values() for pid in place.used.ranks}
        for place in self._places.values():
            kept = [one for one in place.files if one.rank.pid in ranks]
            place.files = deque(kept, maxlen=MAX_KEPT)
        children = self._context.host.children(RECENT)
        for pid in sorted(users & ranks.keys()):
            own = children.get(pid, [])
            workers = [own[self._turn % len(own)]] if own else []
            for device, path in data_files(self._context.host, [pid, *workers], self._places):
                file = DataFile(ranks[pid], path)
                if file not in self._places[device].files:
                    self._places[device].files.append(file)

    # --- reading -----------------------------------------------------------------------------------

    def _measure(self, place: _Place, jobs: Sequence[Job], until: float) -> None:
        if place.stuck_since and place.stuck_at in self._reader.stuck:
            return
        place.stuck_since, place.reason = 0.0, ""
        found: list[TimedRead] = []
        for _ in range(min(READS, READS * len(place.files))):
            if time.monotonic() > until - TIMEOUT or place.stuck_since:
                break
            place.files.rotate(1)
            if (one := self._read(place, place.files[0])) is not None:
                found.append(one)
        if (reads := middle(found)) is not None:
            users = [(job.id, rank.rank) for job in jobs for rank in job.ranks if rank.pid in place.used.ranks]  # fmt: skip
            place.trend.add(self._now, reads, self._moved(place.used.mount.device, users))

    def _read(self, place: _Place, file: DataFile) -> TimedRead | None:
        """One read; None where there was nothing to read."""
        host = self._context.host
        path = f"{host.root_of(file.rank.pid)}{file.path}"
        begun = time.monotonic()
        self._number = (self._number + STEP) & (1 << 62) - 1
        answer = self._reader.time_read(
            *(path, self._number),
            rights=host.rights.of(file.rank),
            size=self._context.config.storage.canary.read_size,
            timeout=TIMEOUT,
        )
        if not isinstance(answer, Unreadable):
            return answer if answer.bytes else None
        place.reason = answer.reason
        if answer.stuck:
            place.stuck_since, place.stuck_at = begun, path
        return None

    # --- what is told ------------------------------------------------------------------------------

    def samples(self) -> Iterator[Measure]:
        """For each filesystem how many seconds the last test reads took, by operation."""
        for place in self._places.values():
            if place.trend.last is None:
                continue
            for kind, seconds in place.trend.last.by_operation.items():
                yield Measure(
                    metric="mldebug_filesystem_canary_read_seconds",
                    labels=(*labels(place.used), kind),
                    value=seconds,
                    uids=place.used.uids,
                )

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "test_reads": a row for each filesystem."""
        rows = tuple(_row(one) for one in self._places.values() if one.trend.last)
        return {"test_reads": rows} if rows else {}

    def alarms(self) -> Iterator[StorageAlert]:
        """Alerts about filesystems whose reads have become slow, or do not come back."""
        for device, place in self._places.items():
            title, uids = place.used.title, place.used.uids
            if place.stuck_since:
                since = about(time.monotonic() - place.stuck_since)
                words = f"{title}: a test read has not come back for {since}"
                yield StorageAlert(kind="canary_stuck", subject=title, sentence=words, uids=uids)
            for alert in latency_alerts(title, place.trend.slow(self._now)):
                yield msgspec.structs.replace(alert, uids=uids, device=device)

    def gaps(self) -> Sequence[Gap]:
        """Filesystems that could not be read, and why."""
        return tuple(
            Gap(what=f"test reads of {one.used.title}", reason=one.reason, way_out=WAY_OUT)
            for one in self._places.values()
            if one.reason and not one.stuck_since
        )


def _row(place: _Place) -> Row:
    last = place.trend.last
    seconds = {f"{kind}_seconds": took for kind, took in last.by_operation.items()} if last else {}
    line = place.trend.line(place.used.title)
    return {"title": place.used.title, "mount": place.used.name, **seconds, UIDS: uids_cell(place.used.uids), "line": line}  # fmt: skip


def data_files(
    host: Host, pids: Sequence[int], devices: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """Yield the files on these devices that these processes have open for reading only: (device, path as the process sees it)."""
    for pid in pids:
        mounts: dict[int, tuple[str, str]] | None = None
        for fd in host.descriptors(pid)[:MAX_FILES]:
            path = "" if host.writes_to(pid, fd) else host.link(pid, f"fd/{fd}")
            if not procfs.is_stored(path):
                continue
            if mounts is None:
                mounts = mounts_of(host.text(pid, "mountinfo"))
            _, number = procfs.parse_fdinfo(host.text(pid, f"fdinfo/{fd}"))
            _, device = mounts.get(number, ("", ""))
            if device in devices:
                yield device, path
