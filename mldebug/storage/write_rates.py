"""Which ranks write how fast, from two readings. Pure.

A rank has written what the kernel charges to it and its children, less what was cancelled before it
reached a disk (a file removed before that). Which filesystem it writes to follows from the files
that it holds open: their offsets grow. An offset also grows by reading and seeking. So a file grows
by no more than its process has given to write(2), and one that is open for both by no more than
reading cannot explain.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.core.redact import clean
from mldebug.core.units import size_words

TOP = 5  # growing files that are named for each rank


ProcessKey = tuple[int, int]  # pid and start


class OpenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a process has open for writing. `mount`: its mount point as that process sees it."""

    pid: int
    start_ticks: int  # with the pid it names a process
    fd: int
    path: str
    position: int  # bytes
    mount: str = ""
    device: str = ""  # major:minor
    appends: bool = (
        False  # opened with O_APPEND, or "a": its first position is not what was written
    )
    reads: bool = False  # open for both: reading moves it as well


class IoCounters(NamedTuple):
    """Bytes that a process has read and written by system calls, including those to caches, tmpfs and pipes."""

    read: int
    written: int
    disk: int = 0  # what came to a disk, which the counter of calls may lack

    def since(self, before: "IoCounters") -> "IoCounters":
        """The bytes read and written since an earlier reading.

        The kernel has two counters for writes; the larger difference is taken.
        """
        wrote = max(self.written - before.written, self.disk - before.disk)
        return IoCounters(self.read - before.read, wrote)


class RankWrites(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a rank and its children, at monotonic seconds: bytes written by each process (cancelled ones deducted), and its open files."""

    job: str
    rank: int
    at: float
    bytes: Mapping[ProcessKey, int]
    files: tuple[OpenOutput, ...] = ()
    calls: Mapping[ProcessKey, IoCounters] = {}


class GrowingFile(MeasuredData, frozen=True, kw_only=True):
    """A file that grows, and by how many bytes per second."""

    path: str
    mount: str
    device: str
    rate: float
    size: int  # where the last write ended


class RankWriter(MeasuredData, frozen=True, kw_only=True):
    """What one rank writes: bytes in all since the agent found it, bytes per second, and its growing files, the fastest first.

    `read_rate`: bytes per second that it reads by system calls, from wherever.
    """

    job: str
    rank: int
    total: int
    rate: float
    growing: tuple[GrowingFile, ...] = ()
    read_rate: float = 0.0


def compare(before: RankWrites, now: RankWrites, total: int) -> RankWriter:
    """What a rank wrote between two readings.

    `total`: bytes written before the first reading. A new process is counted from 0; one that has ended is left out.
    """
    seconds = max(now.at - before.at, 1e-3)
    grown = sum(
        max(0, size - before.bytes[key]) for key, size in now.bytes.items() if key in before.bytes
    )
    young = sum(max(0, size) for key, size in now.bytes.items() if key not in before.bytes)
    return RankWriter(
        job=now.job,
        rank=now.rank,
        total=total + grown + young,
        rate=(grown + young) / seconds,
        growing=_growing(before, now, seconds),
        read_rate=_read(before, now) / seconds,
    )


def _read(before: RankWrites, now: RankWrites) -> int:
    """Bytes that its processes have read between two readings; what came since or has ended is left out."""
    return sum(
        max(0, one.since(before.calls[key]).read)
        for key, one in now.calls.items()
        if key in before.calls
    )


def _growing(before: RankWrites, now: RankWrites, seconds: float) -> tuple[GrowingFile, ...]:
    """Growing files, each once: a child inherits what its parent has open, and both show the same position."""
    starts = _Starts(before.files)
    offsets = sorted(((one.position - starts.of(one), one) for one in now.files), key=_surest_first)
    unattributed = _UnattributedBytes(before.calls, now.calls)
    found: dict[tuple[str, str], GrowingFile] = {}
    for moved, one in offsets:
        rate = unattributed.take(one, moved) / seconds
        key = one.path, one.device
        if rate > 0 and (key not in found or rate > found[key].rate):
            found[key] = GrowingFile(path=one.path, mount=one.mount, device=one.device, rate=rate, size=one.position)  # fmt: skip
    return tuple(sorted(found.values(), key=lambda one: -one.rate))


def _surest_first(moved: tuple[int, OpenOutput]) -> tuple[bool, int]:
    return moved[1].reads, -moved[0]


class _UnattributedBytes:
    """Bytes of each process's calls that are not yet attributed to one of its files."""

    def __init__(
        self, before: Mapping[ProcessKey, IoCounters], now: Mapping[ProcessKey, IoCounters]
    ) -> None:
        none = IoCounters(0, 0)
        done = {key: one.since(before.get(key, none)) for key, one in now.items()}
        self._read = {key: one.read for key, one in done.items()}
        self._written = {key: one.written for key, one in done.items()}

    def take(self, one: OpenOutput, moved: int) -> int:
        """The bytes by which a file has grown, at most what its process wrote and no other file has taken.

        `moved`: by how much its offset has moved.
        """
        key = one.pid, one.start_ticks
        if key not in self._written:
            return 0 if one.reads else moved
        sure = moved - self._read[key] if one.reads else moved
        grown = max(0, min(sure, self._written[key]))
        self._written[key] -= grown
        return grown


class _Starts:
    """Offsets of the files at the earlier reading."""

    def __init__(self, before: Sequence[OpenOutput]) -> None:
        self._own = {(one.pid, one.start_ticks, one.fd, one.path): one.position for one in before}
        self._any: dict[tuple[str, str], int] = {}
        for one in before:
            key = one.path, one.device
            self._any[key] = max(one.position, self._any.get(key, 0))

    def of(self, one: OpenOutput) -> int:
        """A file's offset at the earlier reading.

        For a newly opened one 0, or its offset where another process of the rank had it, or where
        it appends.
        """
        own = self._own.get((one.pid, one.start_ticks, one.fd, one.path))
        if own is not None:
            return own
        inherited = self._any.get((one.path, one.device))
        if inherited is not None and inherited <= one.position:
            return inherited
        return one.position if one.appends else 0


def by_mount(writer: RankWriter) -> dict[str, float]:
    """Bytes per second by which a rank's open files grow, by mount point."""
    rates: dict[str, float] = {}
    for one in writer.growing:
        rates[one.mount] = rates.get(one.mount, 0.0) + one.rate
    return rates


def who_fills(writers: Iterable[RankWriter], device: str, names: Mapping[str, str]) -> str:
    """The end of an alert about a full filesystem: which rank writes most to it; "" where none is known.

    `names`: job names by id.
    """
    found = [
        (sum(one.rate for one in writer.growing if one.device == device), writer)
        for writer in writers
    ]
    found = sorted((one for one in found if one[0] > 0), key=lambda one: -one[0])
    if not found:
        return ""
    rate, writer = found[0]
    fastest = next(one for one in writer.growing if one.device == device)
    name = clean(names.get(writer.job, writer.job), 40)
    others = _others(len(found) - 1)
    return (
        f"rank {writer.rank} of {name} writes {size_words(rate)}/s to it,"
        f" most to {clean(fastest.path, 120)}{others}"
    )


def who_filled(writers: Iterable[tuple[RankWriter, str]], mount: str) -> str:
    """Which job wrote most to the filesystem mounted at `mount` at the last readings. `writers`: each with the name of its job, "" where
    it may not be named. "" where no file was seen to grow there.
    """
    rates: dict[tuple[str, str], float] = {}
    for writer, name in writers:
        key = writer.job, clean(name, 40) or "a job of another user"
        rates[key] = rates.get(key, 0.0) + by_mount(writer).get(mount, 0.0)
    (_, name), rate = max(rates.items(), key=lambda one: one[1], default=(("", ""), 0.0))
    return f"most to it was written by {name}: {size_words(rate)}/s" if rate >= 1 else ""


def _others(count: int) -> str:
    if not count:
        return ""
    return f"; {count} other {'rank writes' if count == 1 else 'ranks write'} there too"


def writer_line(writer: RankWriter, name: str) -> str:
    """How much a rank writes, in one sentence."""
    words = f"rank {writer.rank} of {clean(name, 40)} writes {size_words(writer.rate)}/s"
    if writer.growing:
        one = writer.growing[0]
        return f"{words}; {clean(one.path, 120)} on {clean(one.mount, 80)} grows by {size_words(one.rate)}/s"
    return f"{words}, to no file that stays open" if writer.rate >= 1 else words
