"""The file format of speedscope (https://www.speedscope.app/file-format-schema.json): one evented profile per thread."""

from collections.abc import Iterator, Sequence

import msgspec

from mldebug import __version__
from mldebug.capture.trace.chrome import process_name
from mldebug.capture.trace.records import Place, Ring
from mldebug.capture.trace.spans import Edge, edges
from mldebug.core.redact import safe_line

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Frames:
    """Each place once, by number."""

    def __init__(self) -> None:
        self._numbers: dict[Place, int] = {}

    def number(self, place: Place) -> int:
        return self._numbers.setdefault(place, len(self._numbers))

    def table(self) -> list[dict[str, object]]:
        return [_frame(place) for place in self._numbers]


def _frame(place: Place) -> dict[str, object]:
    told: dict[str, object] = {"name": safe_line(place.function, 120) or "?"}
    if place.path:
        told["file"] = safe_line(place.path, 400)
    if place.line:
        told["line"] = place.line
    return told


def speedscope(rings: Sequence[Ring], name: str = "mldebug trace") -> Iterator[bytes]:
    """The file in pieces. What has not returned is closed at the end: the format wants that."""
    frames = _Frames()
    told = {
        "$schema": SCHEMA,
        "name": safe_line(name, 200),
        "exporter": f"mldebug@{__version__}",
        "activeProfileIndex": 0,
    }
    yield msgspec.json.encode(told)[:-1] + b',"profiles":['
    between = b""
    for ring in rings:
        for thread, some in edges(ring.events, sorted(ring.threads)):
            yield between
            yield from _profile(ring, thread, some, frames)
            between = b",\n"
    yield b'],"shared":%b}' % msgspec.json.encode({"frames": frames.table()})


def _profile(ring: Ring, thread: int, some: Iterator[Edge], frames: _Frames) -> Iterator[bytes]:
    """Its end is known last, and so is written last."""
    name = ring.name(thread) or f"thread {thread}"
    told = {"type": "evented", "name": f"{process_name(ring.header)}: {name}"}
    told |= {"unit": "nanoseconds"}
    yield msgspec.json.encode(told)[:-1] + b',"startValue":0,"events":['
    start, at, between = -1, 0, b""
    for edge in some:
        start = edge.at if start < 0 else start
        at = edge.at - start
        kind, frame = b"O" if edge.opens else b"C", frames.number(edge.place)
        yield b'%b{"type":"%b","frame":%d,"at":%d}' % (between, kind, frame, at)
        between = b","
    yield b'],"endValue":%d}' % at
