"""NicerTrace's line format: frames as they change, then each line with its elapsed time and its source text.

        train:40 train_step                      a frame is entered: module, first line, function
0:00:12 train.py:   44:     loss = model(x)      a line, with the time since the first event shown
        <- train:40 train_step                   a frame is left; NicerTrace did not tell
--- thread 7 (pt_autograd_0), step 118 ---       from here on another thread, or another step
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from mldebug.capture.trace.records import LEAVES, Event, Kind, Place, Ring
from mldebug.core.redact import safe_line

INDENT = " " * 8
MAX_SOURCE = 160  # characters of a source line
MAX_NAME = 120
_LEFT = {Kind.RETURN: "<-", Kind.UNWIND: "<! by an exception:", Kind.YIELD: "<~ yields:"}
_ENTERED = {Kind.CALL: "", Kind.RESUME: "~> goes on: "}

Source = Callable[[str, int], str]


def no_source(path: str, line: int) -> str:
    """Where no source text can be read."""
    return ""


@lru_cache(maxsize=4096)
def frame_words(place: Place) -> str:
    """`PIL.Image:2896 new`; its file stands in for the script that was started, and for what has no module."""
    known = place.module if place.module != "__main__" else ""
    name = known or place.file or place.module or "?"
    where = f"{name}:{place.line}" if place.line else name
    return safe_line(f"{where} {place.function}", MAX_NAME)


def lines(ring: Ring, events: Iterable[Event], source: Source = no_source) -> Iterator[str]:
    """The events as text, in their order. `source` gives the text of a line of a file, "" where there is none."""
    before: Event | None = None
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


def _heading(ring: Ring, event: Event) -> str:
    name = ring.name(event.thread)
    thread = f"thread {event.thread}" + (f" ({name})" if name else "")
    step = "" if event.step is None else f", step {event.step:,}"
    return f"--- {thread}{step} ---"


def _changed(before: Event, event: Event) -> bool:
    """Another frame, without an event of its own that says so: we are back in the caller."""
    if event.kind is not Kind.LINE:
        return False
    return _frame(before) != _frame(event) or before.kind in LEAVES


def _frame(event: Event) -> tuple[int, Place, int]:
    """A line lies inside the frame that its call has opened."""
    return event.thread, event.place, event.depth - (event.kind is Kind.LINE)


def _line(event: Event, elapsed: int, source: Source) -> str:
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
def _file(place: Place) -> str:
    return safe_line(place.file or place.module or "?", MAX_NAME)


def clock(nanoseconds: int) -> str:
    """`0:00:12.345`: hours, minutes, seconds; not negative."""
    milliseconds = max(0, nanoseconds) // 1_000_000
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:03}"
