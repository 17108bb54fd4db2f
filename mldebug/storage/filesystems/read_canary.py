"""How long small test reads take on a filesystem whose operations the kernel does not count (FUSE, object stores): what is usual, and
what is slow.

Pure.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from mldebug.core.units import size_words
from mldebug.storage.filesystems.latency import (
    GAP,
    MUCH,
    OperationTrend,
    OperationWindow,
    SlowOperations,
    milliseconds,
)
from mldebug.storage.filesystems.operation_counters import METADATA, OPEN, READ


class CanaryReads(NamedTuple):
    """What the test reads of one look took, in seconds: the median of finding the file, opening it, and reading `bytes` of it."""

    find: float
    open: float
    read: float
    bytes: int

    @property
    def by_operation(self) -> dict[str, float]:
        """Seconds by kind of operation: read, open, metadata."""
        return {READ: self.read, OPEN: self.open, METADATA: self.find}


def middle(reads: Sequence[tuple[float, float, float, int]]) -> CanaryReads | None:
    """The medians of several test reads, each given as (seconds to find the file, to open it, to read, bytes); None without reads."""
    if not reads:
        return None
    find, opened, read, size = zip(*reads, strict=True)
    return CanaryReads(median(find), median(opened), median(read), int(median(size)))


class ReadCanaryTrend:
    """The test reads of one filesystem: the last ones, what is usual, and what has become slow. For one thread."""

    def __init__(self, interval: float) -> None:
        """`interval`: seconds between two looks."""
        gap = max(GAP, 4 * interval)
        self._trends = {kind: OperationTrend(kind, gap) for kind in (READ, OPEN, METADATA)}
        self.last: CanaryReads | None = None

    def add(self, at: float, reads: CanaryReads, moved: float) -> None:
        """Add the reads of a look at `at`, seconds of a clock. `moved`: bytes per second that the jobs themselves move there: as long
        as that is half as much again as usual, a read may take longer, and is not slow.
        """
        self.last = reads
        for kind, seconds in reads.by_operation.items():
            self._trends[kind].add(at, OperationWindow(seconds, max(moved, MUCH), 0.0))

    def slow(self, at: float) -> Iterator[SlowOperations]:
        """Yield what takes much longer than usual at `at`, in three looks in a row."""
        return (found for trend in self._trends.values() if (found := trend.slow(at)))

    def line(self, title: str) -> str:
        """The last reads in words: `/data (s3fs): 64 KiB read in 3.1 ms (20 MiB/s), opened in 1 ms, found in 0.4 ms; usually read in
        3 ms`. `title`: the name of the filesystem.
        """
        if self.last is None:
            return f"{title}: not read yet"
        find, opened, read, size = self.last
        rate = f" ({size_words(size / read)}/s)" if read > 0 else ""
        words = f"{title}: {size_words(size)} read in {milliseconds(read)}{rate}, opened in {milliseconds(opened)}, found in {milliseconds(find)}"
        usual = self._trends[READ].usual_seconds
        return words if usual is None else f"{words}; usually read in {milliseconds(usual)}"
