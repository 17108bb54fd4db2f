"""What a ring holds, once it is read: who wrote it, and what happened, oldest first."""

from enum import StrEnum
from typing import NamedTuple

from mldebug.model import Noun


class Kind(StrEnum):
    """What happened. A generator that yields leaves its frame, and comes back by `resume`."""

    CALL = "call"
    LINE = "line"
    RETURN = "return"
    EXCEPTION = "exception"  # raised, or passing through this frame
    UNWIND = "unwind"  # the frame is left by an exception
    YIELD = "yield"
    RESUME = "resume"
    C_CALL = "c_call"
    C_RETURN = "c_return"
    NOTE = "note"  # of the tracer itself


ENTERS = frozenset({Kind.CALL, Kind.RESUME, Kind.C_CALL})
LEAVES = frozenset({Kind.RETURN, Kind.UNWIND, Kind.YIELD, Kind.C_RETURN})


class Place(NamedTuple):
    """A function as the tracer names it; `line` is its first one, 0 where it is not known."""

    function: str
    path: str = ""
    line: int = 0
    module: str = ""

    @property
    def file(self) -> str:
        """The file without its folders."""
        return self.path.rpartition("/")[2]


class Event(NamedTuple):
    """`at`: nanoseconds of the writer's monotonic clock. `line` is where it happened, 0: not told."""

    at: int
    thread: int
    depth: int
    kind: Kind
    place: Place
    line: int = 0
    step: int | None = None


class Header(Noun, frozen=True, kw_only=True):
    """Who wrote the ring. Clocks: the same moment by both, nanoseconds."""

    pid: int = 0  # as the process itself sees it
    start_ticks: int = 0  # /proc/PID/stat field 22
    boot_id: str = ""
    rank: int | None = None
    world_size: int | None = None
    node: str = ""
    wall_ns: int = 0
    monotonic_ns: int = 0
    python: str = ""
    engine: str = ""
    state: str = ""  # on, off; why it is off
    size: int = 0  # bytes of the file
    capacity: int = 0  # records that fit
    written: int = 0  # records that were ever written

    @property
    def offset_ns(self) -> int:
        """What to add to a time of the monotonic clock to get unix time."""
        return self.wall_ns - self.monotonic_ns


class Ring(Noun, frozen=True, kw_only=True):
    """A ring at one moment; `broken` records were not believed, `unfinished` ones were being written."""

    header: Header
    events: tuple[Event, ...] = ()  # by time
    threads: dict[int, str] = {}  # number -> name, where it is known
    broken: int = 0
    unfinished: int = 0

    @property
    def lost(self) -> int:
        """Records that newer ones have overwritten."""
        return max(0, self.header.written - self.header.capacity)

    @property
    def newest(self) -> int | None:
        """When the last event happened, by the writer's monotonic clock; None: nothing was written."""
        return self.events[-1].at if self.events else None
