"""Collects how fast ranks write, and which of their files grow.

What ranks and their children have written, and which files they have open for writing, is read from /proc alone.
"""

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from mldebug.core.model import Gap, Job, RankIdentity
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug.storage.write_rates import (
    TOP,
    IoCounters,
    OpenOutput,
    ProcessKey,
    RankWriter,
    RankWrites,
    by_mount,
    compare,
    who_filled,
    who_fills,
    writer_line,
)
from mldebug_agents.system import procfs
from mldebug_agents.system.context import Context
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

MAX_PROCESSES = 64  # of one rank: itself and its children, DataLoader workers mostly
MAX_FILES = 256  # descriptors of one process
RECENT = 6.0  # seconds; a child that came since then is seen the next time


class WriteReader:
    """Reads all ranks of a node. `host` gives links and processes; whatever may wait goes through the reader child."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host = host
        self._reader = reader

    def read(self, jobs: Sequence[Job]) -> Iterator[RankWrites]:
        """Read the I/O counters and open files of all ranks: one reading for each rank whose processes may be read."""
        if not jobs:
            return
        children = self._host.children(RECENT)
        for job in jobs:
            families = [self._family(rank, children) for rank in job.ranks]
            contents = self._counts({pid for pids in families for pid in pids})
            for rank, pids in zip(job.ranks, families, strict=True):
                yield self._rank(job, rank, pids, contents)

    def _family(self, rank: RankIdentity, children: Mapping[int, list[int]]) -> list[int]:
        return family(rank.pid, children)[:MAX_PROCESSES] if self._lives(rank) else []

    def _counts(self, pids: Iterable[int]) -> dict[int, bytes]:
        """/proc/PID/io of all ranks of a job by one request to the reader child."""
        paths = {f"{self._host.proc}/{pid}/io": pid for pid in pids}
        contents = self._reader.read_many(list(paths), max_bytes=4096)
        return {paths[path]: data for path, data in contents.items() if isinstance(data, bytes)}

    def _rank(
        self, job: Job, rank: RankIdentity, pids: Sequence[int], contents: Mapping[int, bytes]
    ) -> RankWrites:
        at = time.monotonic()
        sizes: dict[ProcessKey, int] = {}
        calls: dict[ProcessKey, IoCounters] = {}
        files: list[OpenOutput] = []
        for pid in pids:
            data = contents.get(pid)
            stat = self._host.brief(pid)
            if stat is None or data is None:
                continue
            sizes[pid, stat.start_ticks] = net_bytes(data)
            if (called := calls_of(data)) is not None:
                calls[pid, stat.start_ticks] = called
            files += self._files(pid, stat.start_ticks)
        return RankWrites(
            job=job.id, rank=rank.rank, at=at, bytes=sizes, files=tuple(files), calls=calls
        )

    def _lives(self, rank: RankIdentity) -> bool:
        """Whether the process is still the one that was found: a pid may be given anew."""
        stat = self._host.brief(rank.pid)
        return stat is not None and rank.start_ticks in (0, stat.start_ticks)

    def _files(self, pid: int, start_ticks: int) -> Iterator[OpenOutput]:
        mounts: dict[int, tuple[str, str]] | None = None
        for fd in self._host.descriptors(pid)[:MAX_FILES]:
            path = self._host.link(pid, f"fd/{fd}") if self._host.writes_to(pid, fd) else ""
            if not procfs.is_stored(path):
                continue
            contents = self._host.text(pid, f"fdinfo/{fd}")
            mode, mount = procfs.parse_fdinfo(contents)
            if "w" not in mode:
                continue
            if mounts is None:
                mounts = mounts_of(self._host.text(pid, "mountinfo"))
            point, device = mounts.get(mount, ("", ""))
            yield OpenOutput(
                pid=pid,
                start_ticks=start_ticks,
                fd=fd,
                path=path,
                position=position(contents),
                mount=point,
                device=device,
                appends=appends(contents),
                reads="r" in mode,
            )


def family(pid: int, children: Mapping[int, list[int]]) -> list[int]:
    """The pids of a process and all its descendants."""
    found = [pid]
    for one in found:
        found += [child for child in children.get(one, ()) if child not in found]
    return found


def net_bytes(io: bytes) -> int:
    """Bytes written by a process, from its /proc/PID/io, less those whose write to disk was cancelled (file removed or
    truncated).
    """
    values = _values(io)
    return max(0, values.get(b"write_bytes", 0) - values.get(b"cancelled_write_bytes", 0))


def calls_of(io: bytes) -> IoCounters | None:
    """Parse /proc/PID/io; None where the text has no such counters."""
    values = _values(io)
    if not {b"rchar", b"wchar"} <= values.keys():
        return None
    return IoCounters(values[b"rchar"], values[b"wchar"], values.get(b"write_bytes", 0))


def _values(io: bytes) -> dict[bytes, int]:
    pairs = (line.partition(b":") for line in io.split(b"\n"))
    return {key: int(value) for key, _, value in pairs if value.strip().isdigit()}


def position(fdinfo: str) -> int:
    """The file position of an open file in bytes, from its /proc/PID/fdinfo text."""
    words = fdinfo.split()
    return int(words[1]) if len(words) > 1 and words[0] == "pos:" and words[1].isdigit() else 0


def appends(fdinfo: str) -> bool:
    """Whether the file was opened with O_APPEND, by its fdinfo."""
    words = fdinfo.split()
    contents = words[words.index("flags:") + 1 :][:1] if "flags:" in words else []
    return bool(
        contents and re.fullmatch("[0-7]{1,20}", contents[0]) and int(contents[0], 8) & os.O_APPEND
    )


def mounts_of(mountinfo: str) -> dict[int, tuple[str, str]]:
    """Mounts by id as (mount point, major:minor), from a mountinfo text."""
    points = {mount.id: mount.point for mount in procfs.parse_mountinfo(mountinfo)}
    found = {}
    for line in mountinfo.split("\n"):
        words = line.split(" ")
        if len(words) > 4 and words[0].isdigit() and int(words[0]) in points:
            found[int(words[0])] = (points[int(words[0])], words[2])
    return found


INTERVAL = 15.0  # seconds between two looks
MAX_MOUNTS = 4  # of one rank that are shown in metrics: the fastest


LATELY = 600.0  # seconds for which a rank counts as one that has filled a filesystem
MAX_WRITERS = 1024


class _RecentWriter(NamedTuple):
    """A rank that had a growing file at unix time `at`, with the name of its job and who may know it."""

    at: float
    writer: RankWriter
    name: str
    uids: tuple[int, ...]


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
        self._lately: Mapping[tuple[str, int], _RecentWriter] = {}  # never changed, only replaced

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read what all ranks of these jobs have written, and compare it with the last call. A rank has a rate from its
        second reading on. `now`: unix time.
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
        recent = {
            key: _RecentWriter(now, one, self._names.get(one.job, ""), self._uids.get(one.job, ()))
            for key, one in self.writers.items()
            if one.growing
        }
        kept = {key: one for key, one in self._lately.items() if 0 <= now - one.at <= LATELY}
        self._lately = dict([*kept.items(), *recent.items()][-MAX_WRITERS:])

    def who_fills(self, device: str) -> str:
        """Which rank writes most to the filesystem with this device number (`"major:minor"`), as the last words of an alert's sentence; "" where no rank writes there."""
        return who_fills(self.writers.values(), device, self._names)

    def who_filled(self, mount: str, uids: AbstractSet[int]) -> str:
        """Who wrote most to the filesystem mounted there when its writers were last seen alive, as users `uids` may read it; "" where
        nobody was seen. Safe from any thread.
        """
        found = tuple(self._lately.values())
        return who_filled(
            [(one.writer, one.name if uids & set(one.uids) else "") for one in found], mount
        )

    def moved(self, device: str, ranks: Collection[tuple[str, int]]) -> float:
        """Bytes per second that all ranks write to files on a device, and that these ranks (job, rank) read from anywhere: the kernel
        does not tell from where. Safe from any thread.
        """
        writers = tuple(self.writers.values())
        written = sum(file.rate for one in writers for file in one.growing if file.device == device)
        return written + sum(one.read_rate for one in writers if (one.job, one.rank) in ranks)

    def written(self) -> float:
        """Bytes per second that all ranks write. Safe from any thread."""
        return sum(one.rate for one in tuple(self.writers.values()))

    def folders(self) -> dict[str, tuple[str, ...]]:
        """By job the folders in which its files grow. Safe from any thread."""
        found: dict[str, dict[str, None]] = {}
        for one in tuple(self.writers.values()):
            paths = (os.path.dirname(file.path) for file in one.growing)
            found.setdefault(one.job, {}).update(dict.fromkeys(paths))
        return {job: tuple(paths) for job, paths in found.items()}

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
