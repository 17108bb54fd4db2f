"""How long operations on a filesystem take, compared with what they took before: slow storage that still answers.

Pure.

A filesystem is slow where its operations of one kind take three times as long as usual, and 10 ms longer, in three windows in a row,
although it does not move more than usual: a checkpoint that all ranks write at once makes each write wait, and is no fault; nor do windows count
in which the other kinds move much more than usual, for reads wait beside such a checkpoint. What is usual is the median of the windows before, so one burst does not change it; windows that are slow do not count for it until the
slowness has lasted for an hour, which then is what is usual.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from statistics import median
from typing import NamedTuple

from mldebug.core.units import size_words
from mldebug.storage.filesystems.operation_counters import Counts, OperationCount
from mldebug.storage.filesystems.state import StorageAlert

KEPT = 240  # windows of which the median is what is usual
LEAST = 20  # windows that it needs
FEW = 20  # operations: a window with fewer tells nothing
TIMES = 3.0
MORE_SECONDS = 0.010
IN_A_ROW = 3
GAP = 60.0  # seconds: slow windows further apart are not in a row, and what was slow before says nothing of now
BUSIER = 1.5  # times the usual bytes (or operations) a second: a filesystem that moves so much more may take longer
MUCH = 1 << 20  # bytes a second, of a kind that is idle most of the time
ADAPTS = 3600.0  # seconds after which slow is what is usual
_PLURALS = {"read": "reads", "write": "writes", "open": "opens", "metadata": "metadata operations"}


class OperationWindow(NamedTuple):
    """The operations of one kind that ended between two readings of a filesystem's counters: seconds for each, operations
    and bytes per second.
    """

    seconds_each: float
    per_second: float  # operations
    bytes_per_second: float

    @property
    def load(self) -> float:
        """The load in this window: bytes per second, or operations per second for operations that move no bytes."""
        return self.bytes_per_second or self.per_second


class SlowOperations(NamedTuple):
    """One kind of operations that takes longer than usual."""

    kind: str
    now: OperationWindow
    usual_seconds: float
    usual_load: float
    since: float  # seconds of the clock of the looks

    def sentence(self, title: str) -> str:
        """The slow operations in words: `reads of /data (nfs01:/data) take 48 ms instead of 3 ms since 14:02 UTC (12 MiB/s
        instead of 30 MiB/s)`. `title`: the name of the filesystem.
        """
        words = f"{_PLURALS[self.kind]} of {title} take {milliseconds(self.now.seconds_each)} instead of {milliseconds(self.usual_seconds)}"
        words += f" since {datetime.fromtimestamp(self.since, UTC).strftime('%H:%M UTC')}"
        if not self.now.bytes_per_second:
            return words
        return f"{words} ({size_words(self.now.bytes_per_second)}/s instead of {size_words(self.usual_load)}/s)"


class OperationTrend:
    """The measurements ("windows") of one kind of operations on one filesystem: what is usual, and for how long it has been
    slow.
    """

    def __init__(self, kind: str, gap: float = GAP) -> None:
        """`gap`: seconds between two windows that are not in a row any more."""
        self._kind, self._gap = kind, gap
        self._usual: deque[OperationWindow] = deque(maxlen=KEPT)
        self._slow: list[tuple[float, OperationWindow]] = []

    @property
    def usual_load(self) -> float | None:
        """The usual load: the median of the bytes (or operations) per second of the earlier windows; None where there are
        too few.
        """
        return median(one.load for one in self._usual) if len(self._usual) >= LEAST else None

    @property
    def usual_seconds(self) -> float | None:
        """What an operation usually takes; None where there are too few windows."""
        return (
            median(one.seconds_each for one in self._usual) if len(self._usual) >= LEAST else None
        )

    def add(self, at: float, window: OperationWindow) -> None:
        """Add a window that ended at unix time `at`."""
        if len(self._usual) < LEAST or not self._is_slow(window):
            self._usual.append(window)
            self._slow = []
            return
        if self._slow and at - self._slow[-1][0] > self._gap:
            self._slow = []
        self._slow.append((at, window))
        if at - self._slow[0][0] >= ADAPTS:
            self._usual = deque((one for _, one in self._slow), maxlen=KEPT)
            self._slow = []

    def _is_slow(self, window: OperationWindow) -> bool:
        usual = median(one.seconds_each for one in self._usual)
        load = median(one.load for one in self._usual)
        longer = window.seconds_each >= max(TIMES * usual, usual + MORE_SECONDS)
        return longer and window.load <= BUSIER * load

    def slow(self, at: float) -> SlowOperations | None:
        """Return how slow these operations are at unix time `at`; None where they are not slow, or for fewer than three
        windows in a row.
        """
        if len(self._slow) < IN_A_ROW or at - self._slow[-1][0] > self._gap:
            return None
        lately = [one for _, one in self._slow[-IN_A_ROW:]]
        now = OperationWindow(*(median(figures) for figures in zip(*lately, strict=True)))
        usual = median(one.seconds_each for one in self._usual)
        load = median(one.load for one in self._usual)
        return SlowOperations(self._kind, now, usual, load, self._slow[0][0])


class FilesystemLatency:
    """The latencies of one filesystem, from readings of its counters. For one thread."""

    def __init__(self) -> None:
        self._before: tuple[float, Counts] | None = None
        self._trends: dict[str, OperationTrend] = {}
        self._loads: dict[str, deque[float]] = {}  # of each look, idle ones among them
        self._looks = 0
        self.totals: Counts = {}  # as read last
        self.last: Mapping[str, OperationWindow] = {}  # between the last two readings

    def add(self, at: float, counts: Counts) -> None:
        """Add the counters as they were at unix time `at`. Counters that went back begin anew, because the filesystem was
        mounted again.
        """
        before, self._before, self.totals = self._before, (at, counts), counts
        if before is None or at <= before[0]:
            return
        seconds = at - before[0]
        found = {kind: _window(before[1].get(kind), count, seconds) for kind, count in counts.items()}  # fmt: skip
        self.last = {kind: one for kind, one in found.items() if one}
        windows = {kind: one for kind, one in self.last.items() if counts[kind].timed and one.per_second * seconds >= FEW}  # fmt: skip
        busy = {kind for kind, one in windows.items() if self._is_busier(kind, one)}
        for kind, window in windows.items():
            if not busy - {kind}:
                self._trends.setdefault(kind, OperationTrend(kind)).add(at, window)
        self._keep_loads(found)

    def slow(self, at: float) -> Iterator[SlowOperations]:
        """Yield the kinds of operations that are slow at unix time `at`. While this node writes much more than usual, slow
        reads are not held against the filesystem, because the job itself causes them; and the other way round.
        """
        return (found for trend in self._trends.values() if (found := trend.slow(at)))

    def _is_busier(self, kind: str, window: OperationWindow) -> bool:
        """Whether it moves more than usual, by the windows that told something or, as most filesystems are written seldom, by all."""
        usual = self._trends[kind].usual_load if kind in self._trends else None
        if usual is not None and window.load > TIMES * usual:
            return True
        every = self._loads.get(kind) or deque([0.0])
        return window.bytes_per_second > max(MUCH, TIMES * median(every))

    def _keep_loads(self, found: Mapping[str, OperationWindow | None]) -> None:
        for kind, window in found.items():  # Lustre does not list a kind before its first operation
            kept = self._loads.setdefault(kind, deque([0.0] * min(self._looks, KEPT), maxlen=KEPT))
            kept.append(window.load if window else 0.0)
        self._looks += 1


def _window(
    before: OperationCount | None, now: OperationCount, seconds: float
) -> OperationWindow | None:
    """What was done between two readings; None where nothing was, or the counters went back."""
    if before is None:
        return None
    done, took = now.operations - before.operations, now.seconds - before.seconds
    moved = now.bytes - before.bytes
    if done <= 0 or took < 0 or moved < 0:
        return None
    return OperationWindow(took / done, done / seconds, moved / seconds)


def latency_alerts(title: str, slow: Iterable[SlowOperations]) -> Iterator[StorageAlert]:
    """Yield an alert for each kind of operations that is slow on the filesystem `title`."""
    for found in slow:
        yield StorageAlert(
            kind="slow", subject=title, sentence=found.sentence(title), operation=found.kind
        )


def latency_line(
    title: str, totals: Mapping[str, OperationCount], last: Mapping[str, OperationWindow] = {}
) -> str:
    """The mean times of operations since the filesystem was mounted, how many there were, and what moves now: `/data (nfs01:/data): read
    3.1 ms (41,200; now 30 MiB/s), write 12 ms (310)`. `last`: between the last two readings.
    """
    each = (_operation_words(kind, one, last.get(kind)) for kind, one in totals.items() if one.operations)  # fmt: skip
    return f"{title}: {', '.join(each)}"


def _operation_words(kind: str, one: OperationCount, now: OperationWindow | None) -> str:
    mean = f" {milliseconds(one.seconds / one.operations)}" if one.timed else ""
    rate = f"; now {size_words(now.bytes_per_second)}/s" if now and now.bytes_per_second else ""
    return f"{kind}{mean} ({one.operations:,}{rate})"


def milliseconds(seconds: float) -> str:
    """A time in words: `3.1 ms`, `1,200 ms`."""
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"
