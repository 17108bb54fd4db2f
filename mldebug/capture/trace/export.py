"""Call traces in the file formats of two viewers: Chrome's Trace Event Format (for Perfetto) and speedscope.

Chrome (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): one process per ring, its threads, calls as
slices; `ts` is in microseconds. A call that has not returned begins and has no end: viewers draw it to the end of the trace.
speedscope (https://www.speedscope.app/file-format-schema.json): one evented profile per thread.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from mldebug import __version__
from mldebug.capture.trace.records import (
    Ring,
    RingHeader,
    TracedFunction,
    TraceEvent,
    TraceEventKind,
    TraceEvents,
)
from mldebug.capture.trace.spans import CallEdge, edges
from mldebug.core.redact import safe_line

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def chrome(rings: Sequence[Ring]) -> Iterator[bytes]:
    """The file in Chrome's trace format, in pieces of bytes. Times are unix time, so that the calls of several ranks stand side
    by side.
    """
    yield b'{"displayTimeUnit":"ns","traceEvents":['
    first = True
    for number, ring in enumerate(rings):
        for one in _of_ring(ring, number):
            yield one if first else b",\n" + one
            first = False
    yield b"]}\n"


def process_name(header: RingHeader) -> str:
    """A traced process in words: `rank 3 (pid 41003 on gpu-17)`; `child of rank 3 (…)` for a child process or worker of a
    rank.
    """
    place = f"pid {header.pid}" + (f" on {safe_line(header.node, 60)}" if header.node else "")
    who = "child of rank" if header.child else "rank"
    return place if header.rank is None else f"{who} {header.rank} ({place})"


def _of_ring(ring: Ring, number: int) -> Iterator[bytes]:
    yield _meta("process_name", number, 0, {"name": process_name(ring.header)})
    order = ring.header.rank if ring.header.rank is not None else number
    yield _meta("process_sort_index", number, 0, {"sort_index": order})
    offset, end = ring.header.offset_ns, ring.newest or 0
    for thread, some in edges(ring.events, ring.threads):
        name = ring.name(thread) or f"thread {thread}"
        yield _meta("thread_name", number, thread, {"name": name})
        ids = f'"pid":{number},"tid":{thread},"ts":'.encode()
        for edge in some:
            if edge.opens:
                yield b"{%b,%b%b}" % (_begun(edge.place), ids, _microseconds(edge.at + offset))
            elif edge.recorded or edge.at < end:
                yield b'{"ph":"E",%b%b}' % (ids, _microseconds(edge.at + offset))
    yield from _points(ring.events, number, offset)


def _meta(what: str, pid: int, tid: int, arguments: dict[str, object]) -> bytes:
    return msgspec.json.encode({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments})


def _microseconds(nanoseconds: int) -> bytes:
    """Exactly: a float has not so many digits."""
    return b"%d.%03d" % divmod(max(0, nanoseconds), 1000)


@lru_cache(maxsize=65_536)
def _begun(place: TracedFunction) -> bytes:
    """A slice begins: what is the same for all calls of a function."""
    details: dict[str, object] = {"file": safe_line(place.path, 400), "line": place.line}
    name = safe_line(place.function, 120)
    return msgspec.json.encode({"ph": "B", "name": name, "cat": "call", "args": details})[1:-1]


@lru_cache(maxsize=65_536)
def _lined(place: TracedFunction, line: int) -> bytes:
    name = f"{safe_line(place.file, 60)}:{line}"
    return msgspec.json.encode({"ph": "i", "s": "t", "name": name, "cat": "line"})[1:-1]


def _points(events: TraceEvents, pid: int, offset: int) -> Iterator[bytes]:
    """Lines, and the beginning of each step."""
    step: int | None = None
    for event in events:
        if event.step != step and event.step is not None:
            step = event.step
            what = b'"ph":"i","s":"p","name":"step %d","cat":"step"' % step
            yield _point(what, pid, event, offset)
        if event.kind is TraceEventKind.LINE:
            yield _point(_lined(event.place, event.line), pid, event, offset)


def _point(what: bytes, pid: int, event: TraceEvent, offset: int) -> bytes:
    at = _microseconds(event.at + offset)
    return b'{%b,"pid":%d,"tid":%d,"ts":%b}' % (what, pid, event.thread, at)


class _Frames:
    """Each place once, by number."""

    def __init__(self) -> None:
        self._numbers: dict[TracedFunction, int] = {}

    def number(self, place: TracedFunction) -> int:
        return self._numbers.setdefault(place, len(self._numbers))

    def table(self) -> list[dict[str, object]]:
        return [_frame(place) for place in self._numbers]


def _frame(place: TracedFunction) -> dict[str, object]:
    entry: dict[str, object] = {"name": safe_line(place.function, 120) or "?"}
    if place.path:
        entry["file"] = safe_line(place.path, 400)
    if place.line:
        entry["line"] = place.line
    return entry


def speedscope(rings: Sequence[Ring], name: str = "mldebug trace") -> Iterator[bytes]:
    """The traces as one JSON file for speedscope.app, in pieces of bytes. Calls that have not returned are closed at the end,
    as its format demands.
    """
    frames = _Frames()
    head = {
        "$schema": SCHEMA,
        "name": safe_line(name, 200),
        "exporter": f"mldebug@{__version__}",
        "activeProfileIndex": 0,
    }
    yield msgspec.json.encode(head)[:-1] + b',"profiles":['
    between = b""
    for ring in rings:
        for thread, some in edges(ring.events, sorted(ring.threads)):
            yield between
            yield from _profile(ring, thread, some, frames)
            between = b",\n"
    yield b'],"shared":%b}' % msgspec.json.encode({"frames": frames.table()})


def _profile(ring: Ring, thread: int, some: Iterator[CallEdge], frames: _Frames) -> Iterator[bytes]:
    """Its end is known last, and so is written last."""
    name = ring.name(thread) or f"thread {thread}"
    head = {"type": "evented", "name": f"{process_name(ring.header)}: {name}"}
    head |= {"unit": "nanoseconds"}
    yield msgspec.json.encode(head)[:-1] + b',"startValue":0,"events":['
    start, at, between = -1, 0, b""
    for edge in some:
        start = edge.at if start < 0 else start
        at = edge.at - start
        kind, frame = b"O" if edge.opens else b"C", frames.number(edge.place)
        yield b'%b{"type":"%b","frame":%d,"at":%d}' % (between, kind, frame, at)
        between = b","
    yield b'],"endValue":%d}' % at
