"""The Trace Event Format of Chrome, which Perfetto reads: one process per ring, its threads, calls as slices.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: `ts` is in microseconds. A call that has not
returned begins and has no end: viewers draw it to the end of the trace.
"""

from collections.abc import Iterator, Sequence

import msgspec

from mldebug.redact import safe_line
from mldebug.ring.records import Event, Header, Kind, Ring
from mldebug.ring.spans import Edge, edges


def chrome(rings: Sequence[Ring]) -> Iterator[bytes]:
    """The file in pieces. Times are unix time, so that the rings of several ranks stand side by side."""
    yield b'{"displayTimeUnit":"ns","traceEvents":['
    first = True
    for number, ring in enumerate(rings):
        for one in _of_ring(ring, number):
            yield (b"" if first else b",\n") + msgspec.json.encode(one)
            first = False
    yield b"]}\n"


def process_name(header: Header) -> str:
    """`rank 3 (pid 41003 on gpu-17)`."""
    place = f"pid {header.pid}" + (f" on {safe_line(header.node, 60)}" if header.node else "")
    return place if header.rank is None else f"rank {header.rank} ({place})"


def _of_ring(ring: Ring, number: int) -> Iterator[dict[str, object]]:
    yield _meta("process_name", number, 0, {"name": process_name(ring.header)})
    order = ring.header.rank if ring.header.rank is not None else number
    yield _meta("process_sort_index", number, 0, {"sort_index": order})
    offset, end = ring.header.offset_ns, ring.newest or 0
    for thread, some in edges(ring.events).items():
        name = ring.name(thread) or f"thread {thread}"
        yield _meta("thread_name", number, thread, {"name": name})
        for edge in some:
            if edge.opens or edge.seen or edge.at < end:
                yield _slice(edge, number, thread, offset)
    yield from _points(ring.events, number, offset)


def _meta(what: str, pid: int, tid: int, told: dict[str, object]) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": told}


def _slice(edge: Edge, pid: int, tid: int, offset: int) -> dict[str, object]:
    moment = {"pid": pid, "tid": tid, "ts": (edge.at + offset) / 1000}
    if not edge.opens:
        return {"ph": "E", **moment}
    told: dict[str, object] = {"file": safe_line(edge.place.path, 400), "line": edge.place.line}
    name = safe_line(edge.place.function, 120)
    return {"ph": "B", "name": name, "cat": "call", "args": told, **moment}


def _points(events: Sequence[Event], pid: int, offset: int) -> Iterator[dict[str, object]]:
    """Lines, and the beginning of each step."""
    step: int | None = None
    for event in events:
        moment = {"pid": pid, "tid": event.thread, "ts": (event.at + offset) / 1000}
        if event.step is not None and event.step != step:
            step = event.step
            yield {"ph": "i", "s": "p", "name": f"step {step}", "cat": "step", **moment}
        if event.kind is Kind.LINE:
            name = f"{safe_line(event.place.file, 60)}:{event.line}"
            yield {"ph": "i", "s": "t", "name": name, "cat": "line", **moment}
