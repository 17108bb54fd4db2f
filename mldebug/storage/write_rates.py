"""Who writes how fast, of readings at two moments: pure.

What a rank has written is what the kernel charges to it and its children, less what was cancelled before it reached a disk
(a file removed before that). What it writes to which filesystem follows from the files that it holds open: their offset grows.
An offset grows by reading and seeking, too: a file grows by no more than its process has handed to write(2), and one that is
open for both by no more than reading cannot have moved it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mldebug.core.model import Noun
from mldebug.core.redact import clean
from mldebug.storage.dir_sizes import approximate

TOP = 5  # growing files that are named for each rank


ProcessKey = tuple[int, int]  # pid and start


class OpenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a process has open for writing. `mount`: the point, as that process sees it."""

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
    """What a process has read and written by system calls so far, bytes; to a cache, a tmpfs or a pipe as well."""

    read: int
    written: int
    disk: int = 0  # what came to a disk, which not all calls tell before

    def since(self, before: "IoCounters") -> "IoCounters":
        """What was done in between; written is what either of the counters tells."""
        wrote = max(self.written - before.written, self.disk - before.disk)
        return IoCounters(self.read - before.read, wrote)


class RankWrites(msgspec.Struct, frozen=True, kw_only=True):
    """One rank and its children at one moment (monotonic): net bytes by process, and what is open."""

    job: str
    rank: int
    at: float
    bytes: Mapping[ProcessKey, int]
    files: tuple[OpenOutput, ...] = ()
    calls: Mapping[ProcessKey, IoCounters] = {}


class GrowingFile(Noun, frozen=True, kw_only=True):
    """A file that grows, by bytes per second."""

    path: str
    mount: str
    device: str
    rate: float
    size: int  # where the last write ended


class RankWriter(Noun, frozen=True, kw_only=True):
    """What one rank does: bytes since the agent saw it, bytes per second, its fastest files first."""

    job: str
    rank: int
    total: int
    rate: float
    growing: tuple[GrowingFile, ...] = ()


def compare(before: RankWrites, now: RankWrites, total: int) -> RankWriter:
    """What was written in between; a process that is new or gone counts as far as both readings know it."""
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
    )


def _growing(before: RankWrites, now: RankWrites, seconds: float) -> tuple[GrowingFile, ...]:
    """Each file once: a child inherits what its parent has open, and both show the same position."""
    starts = _Starts(before.files)
    moved = sorted(((one.position - starts.of(one), one) for one in now.files), key=_surest_first)
    left = _Left(before.calls, now.calls)
    found: dict[tuple[str, str], GrowingFile] = {}
    for far, one in moved:
        rate = left.take(one, far) / seconds
        key = one.path, one.device
        if rate > 0 and (key not in found or rate > found[key].rate):
            found[key] = GrowingFile(path=one.path, mount=one.mount, device=one.device, rate=rate, size=one.position)  # fmt: skip
    return tuple(sorted(found.values(), key=lambda one: -one.rate))


def _surest_first(moved: tuple[int, OpenOutput]) -> tuple[bool, int]:
    return moved[1].reads, -moved[0]


class _Left:
    """What of the calls of each process is not yet ascribed to one of its files."""

    def __init__(
        self, before: Mapping[ProcessKey, IoCounters], now: Mapping[ProcessKey, IoCounters]
    ) -> None:
        none = IoCounters(0, 0)
        done = {key: one.since(before.get(key, none)) for key, one in now.items()}
        self._read = {key: one.read for key, one in done.items()}
        self._written = {key: one.written for key, one in done.items()}

    def take(self, one: OpenOutput, far: int) -> int:
        """By how much that file has grown at most; `far`: by how much its offset has."""
        key = one.pid, one.start_ticks
        if key not in self._written:
            return 0 if one.reads else far
        sure = far - self._read[key] if one.reads else far
        grown = max(0, min(sure, self._written[key]))
        self._written[key] -= grown
        return grown


class _Starts:
    """Where the files stood at the reading before."""

    def __init__(self, before: Sequence[OpenOutput]) -> None:
        self._own = {(one.pid, one.start_ticks, one.fd, one.path): one.position for one in before}
        self._any: dict[tuple[str, str], int] = {}
        for one in before:
            key = one.path, one.device
            self._any[key] = max(one.position, self._any.get(key, 0))

    def of(self, one: OpenOutput) -> int:
        """One that is new begins at 0, unless it was open elsewhere in the rank, or begins at its end."""
        own = self._own.get((one.pid, one.start_ticks, one.fd, one.path))
        if own is not None:
            return own
        inherited = self._any.get((one.path, one.device))
        if inherited is not None and inherited <= one.position:
            return inherited
        return one.position if one.appends else 0


def by_mount(writer: RankWriter) -> dict[str, float]:
    """Bytes per second that the files of a rank grow, by mount."""
    rates: dict[str, float] = {}
    for one in writer.growing:
        rates[one.mount] = rates.get(one.mount, 0.0) + one.rate
    return rates


def who_fills(writers: Iterable[RankWriter], device: str, names: Mapping[str, str]) -> str:
    """The clause that an alarm about a filesystem ends with; "" where nobody is seen to write there."""
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
        f"rank {writer.rank} of {name} writes {approximate(int(rate))}/s to it,"
        f" most to {clean(fastest.path, 120)}{others}"
    )


def _others(count: int) -> str:
    if not count:
        return ""
    return f"; {count} other {'rank writes' if count == 1 else 'ranks write'} there too"


def writer_line(writer: RankWriter, name: str) -> str:
    """What a rank writes, for people."""
    said = f"rank {writer.rank} of {clean(name, 40)} writes {approximate(int(writer.rate))}/s"
    if writer.growing:
        one = writer.growing[0]
        return f"{said}; {clean(one.path, 120)} on {clean(one.mount, 80)} grows by {approximate(int(one.rate))}/s"
    return f"{said}, to no file that stays open" if writer.rate >= 1 else said
