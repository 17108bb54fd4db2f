"""What a ring holds, once it is read: who wrote it, and what happened, oldest first."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from mldebug.core.model import MeasuredData
from mldebug.core.redact import safe_line


class TraceEventKind(StrEnum):
    """What an event reports of a call. A generator that yields leaves its frame by YIELD and comes back by RESUME."""

    CALL = "call"
    RETURN = "return"
    LINE = "line"
    UNWIND = "unwind"  # the frame is left by an exception
    YIELD = "yield"
    RESUME = "resume"


ENTERS = frozenset({TraceEventKind.CALL, TraceEventKind.RESUME})
LEAVES = frozenset({TraceEventKind.RETURN, TraceEventKind.UNWIND, TraceEventKind.YIELD})


class TracedFunction(NamedTuple):
    """A function as the tracer names it. `line`: its first line, 0 where that is not known."""

    function: str
    path: str = ""
    line: int = 0
    module: str = ""

    @property
    def file(self) -> str:
        """The file name without its folders."""
        return self.path.rpartition("/")[2]


class TraceEvent(NamedTuple):
    """One event of a thread at `at` (nanoseconds of the writer's monotonic clock), in the training step `step`. `line`: the
    source line, 0 where it is not known.
    """

    at: int
    thread: int  # as the kernel numbers it
    depth: int  # traced functions that are open around it: of a line its own is one of them
    kind: TraceEventKind
    place: TracedFunction
    line: int = 0
    step: int | None = None


class RingHeader(MeasuredData, frozen=True, kw_only=True):
    """The header of a ring file: its layout, and the process that wrote it. Times are nanoseconds of the monotonic clock of the
    writer's node, but for `wall_ns`.
    """

    size: int  # bytes of the file
    names_at: int
    names_size: int
    chunks_at: int
    chunk_size: int
    chunks: int
    pid: int = 0  # as the process itself sees it
    start_ticks: int = 0  # /proc/PID/stat field 22
    boot_id: str = ""
    rank: int | None = None
    world_size: int | None = None
    child: bool = False  # forked, or a worker: it has the rank of its parent
    wall_ns: int = 0  # both clocks at one moment
    monotonic_ns: int = 0
    step: int | None = None  # reached last
    step_at: int = 0
    dropped: int = 0  # events that found no room
    state: str = ""  # tracing, not begun, stepped aside, ended
    traced: str = ""  # calls, lines, calls and lines
    engine: str = ""
    python: str = ""
    node: str = ""
    why: str = ""  # why the state is what it is
    followed: str = ""
    command: str = ""  # redacted

    @property
    def offset_ns(self) -> int:
        """The nanoseconds to add to a time of the monotonic clock to get unix time."""
        return self.wall_ns - self.monotonic_ns

    @property
    def stopped(self) -> str:
        """Words that say why tracing stopped while the process went on; "" where no reason is recorded."""
        if self.state not in ("ended", "stepped aside") or not self.why:
            return ""
        return f" (and then tracing {self.state}: {safe_line(self.why, 100)})"


class TracedThread(NamedTuple):
    """A thread of the traced process. `cut`: older records of it are missing, because they were overwritten or not read."""

    name: str
    main: bool
    cut: bool


class TraceEvents(ABC):
    """The calls and other events in a ring file (call trace), ordered by time. They can be iterated any number of times, and
    need not be in memory.
    """

    __slots__ = ()

    @abstractmethod
    def __iter__(self) -> Iterator[TraceEvent]: ...

    @abstractmethod
    def __len__(self) -> int:
        """The number of events; approximate while the ring is still written."""

    @abstractmethod
    def of(self, thread: int) -> Iterator[TraceEvent]:
        """The events of one thread, by its kernel thread id. Their steps may be missing."""

    @property
    @abstractmethod
    def newest(self) -> int | None:
        """When the last event happened, nanoseconds of the writer's monotonic clock; None where there is none."""


class ListedEvents(tuple[TraceEvent, ...], TraceEvents):
    """Events of a ring file (call trace) that are all in memory."""

    __slots__ = ()

    def of(self, thread: int) -> Iterator[TraceEvent]:
        """The events of one thread, by its kernel thread id."""
        return (event for event in self if event.thread == thread)

    @property
    def newest(self) -> int | None:
        """When the last event happened, nanoseconds of the writer's monotonic clock; None where there is none."""
        return self[-1].at if self else None


class Ring(MeasuredData, frozen=True, kw_only=True):
    """The content of a call-trace file at one moment. `threads`: by kernel thread id. `broken`: sentences about names and chunks
    that are damaged.
    """

    header: RingHeader
    events: TraceEvents = ListedEvents()
    threads: dict[int, TracedThread] = {}
    broken: tuple[str, ...] = ()

    @property
    def newest(self) -> int | None:
        """When the last event happened, nanoseconds of the writer's monotonic clock; None where there is none."""
        return self.events.newest

    def name(self, thread: int) -> str:
        """The thread's name, for example `MainThread`; "" where it is not known."""
        found = self.threads.get(thread)
        return found.name if found else ""


def training_thread(ring: Ring) -> int | None:
    """The kernel thread id of the main thread if it has events, else of the thread with most events; None for a trace without
    events.
    """
    main = next((number for number, one in ring.threads.items() if one.main), None)
    if main is not None and next(ring.events.of(main), None) is not None:
        return main
    count = Counter(event.thread for event in ring.events)
    return count.most_common(1)[0][0] if count else None
