"""NicerTrace's line format: frames as they change, then each line with its elapsed time and its source text.

        train:40 train_step                      a frame is entered: module, first line, function
0:00:12 train.py:   44:     loss = model(x)      a line, with the time since the first event shown
        <- train:40 train_step                   a frame is left; NicerTrace did not tell
--- thread 7 (pt_autograd_0), step 118 ---       from here on another thread, or another step
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from mldebug.capture.trace.records import (
    LEAVES,
    Ring,
    TracedFunction,
    TraceEvent,
    TraceEventKind,
    training_thread,
)
from mldebug.core.model import TraceTail
from mldebug.core.redact import safe_line

INDENT = " " * 8
MAX_SOURCE = 160  # characters of a source line
MAX_NAME = 120
_LEFT = {
    TraceEventKind.RETURN: "<-",
    TraceEventKind.UNWIND: "<! by an exception:",
    TraceEventKind.YIELD: "<~ yields:",
}
_ENTERED = {TraceEventKind.CALL: "", TraceEventKind.RESUME: "~> goes on: "}

Source = Callable[[str, int], str]
MAX_LINE = 400  # characters
MAX_PATH = 1024
SHOWN = 24  # records
OF_OTHERS = 8  # of them at most, of threads beside the training thread


def no_source(path: str, line: int) -> str:
    """A source reader that finds no text: for traces that are read on another machine."""
    return ""


@lru_cache(maxsize=4096)
def frame_words(place: TracedFunction) -> str:
    """A traced function as text: `PIL.Image:2896 new` (module, first line, function). For the main script, or without a module,
    the file name stands in place of the module.
    """
    module = place.module if place.module != "__main__" else ""
    name = module or place.file or place.module or "?"
    where = f"{name}:{place.line}" if place.line else name
    return safe_line(f"{where} {place.function}", MAX_NAME)


def lines(ring: Ring, events: Iterable[TraceEvent], source: Source = no_source) -> Iterator[str]:
    """The events as lines of text, in their order. `source`: gives the text of a line of a file, "" where it has none."""
    before: TraceEvent | None = None
    first = 0
    for event in events:
        if before is None:
            first = event.at
        if before is None or (event.thread, event.step) != (before.thread, before.step):
            yield _heading(ring, event)
        if before is not None and _changed(before, event):
            yield f"{INDENT}{frame_words(event.place)}"
        yield _line(event, event.at - first, source)
        before = event


def _heading(ring: Ring, event: TraceEvent) -> str:
    name = ring.name(event.thread)
    thread = f"thread {event.thread}" + (f" ({name})" if name else "")
    step = "" if event.step is None else f", step {event.step:,}"
    return f"--- {thread}{step} ---"


def _changed(before: TraceEvent, event: TraceEvent) -> bool:
    """Another frame, without an event of its own that says so: we are back in the caller."""
    if event.kind is not TraceEventKind.LINE:
        return False
    return _frame(before) != _frame(event) or before.kind in LEAVES


def _frame(event: TraceEvent) -> tuple[int, TracedFunction, int]:
    """A line lies inside the frame that its call has opened."""
    return event.thread, event.place, event.depth - (event.kind is TraceEventKind.LINE)


def _line(event: TraceEvent, elapsed: int, source: Source) -> str:
    kind = event.kind
    if kind in _ENTERED:
        return f"{INDENT}{_ENTERED[kind]}{frame_words(event.place)}"
    if kind in _LEFT:
        return f"{INDENT}{_LEFT[kind]} {frame_words(event.place)}"
    text = _safe(source(event.place.path, event.line)) if event.line else ""
    return f"{clock(elapsed)} {_file(event.place)}:{event.line:>6}: {text}".rstrip()


@lru_cache(maxsize=4096)
def _safe(text: str) -> str:
    return safe_line(text.rstrip(), MAX_SOURCE)


@lru_cache(maxsize=4096)
def _file(place: TracedFunction) -> str:
    return safe_line(place.file or place.module or "?", MAX_NAME)


def clock(nanoseconds: int) -> str:
    """A time span in nanoseconds as hours, minutes, seconds: `0:00:12.345`. A negative one counts as 0."""
    milliseconds = max(0, nanoseconds) // 1_000_000
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:03}"


def is_source(path: str) -> bool:
    """Whether source text may be read from this path: only from a Python file with an absolute path, since a damaged or forged
    call trace may name any file.
    """
    return (
        path.startswith("/") and path.endswith(".py") and len(path) <= MAX_PATH and "\0" not in path
    )


def nth_line(text: bytes, line: int) -> str:
    """The line with this number (from 1) of a text, without its end; "" where there is none."""
    rows = text.split(b"\n", line)
    return rows[line - 1].decode("utf-8", "replace")[:MAX_LINE] if 0 < line <= len(rows) else ""


def event_words(event: TraceEvent) -> str:
    """An event in words: `line 44 of train:40 train_step`, `called train:40 train_step`."""
    frame = frame_words(event.place)
    return (
        f"line {event.line} of {frame}"
        if event.line and event.kind == "line"
        else f"{event.kind} {frame}"
    )


def last_events(ring: Ring) -> list[TraceEvent]:
    """The last events of the training thread and the newest few of other threads, sorted by time."""
    mine = training_thread(ring)
    others = [event for event in ring.events if event.thread != mine][-OF_OTHERS:]
    own = [event for event in ring.events if event.thread == mine][len(others) - SHOWN :]
    return sorted([*own, *others], key=lambda event: event.at)


def trace_tail(ring: Ring, now: float, path: str, source: Source) -> TraceTail | None:
    """The end of a ring for a report; None where the ring holds no event. `now`: unix time at which it was read. `path`: the
    ring's file. `source`: gives the text of a line of a file.
    """
    shown = last_events(ring)
    mine = training_thread(ring)
    own = [event for event in ring.events if event.thread == mine]
    if not own or ring.newest is None:
        return None
    written = (ring.newest + ring.header.offset_ns) / 1e9
    return TraceTail(
        lines=tuple(lines(ring, shown, source)),
        last=event_words(own[-1]) + ring.header.stopped,
        written_at=round(written, 3),
        age=round(max(0.0, now - written), 3),
        step=own[-1].step,
        engine=ring.header.engine,
        path=safe_line(path, 400),
    )
