"""The file format of speedscope (https://www.speedscope.app/file-format-schema.json): one evented profile per thread."""

from collections.abc import Iterator, Sequence

import msgspec

from mldebug import __version__
from mldebug.redact import safe_line
from mldebug.ring.chrome import process_name
from mldebug.ring.records import Place, Ring
from mldebug.ring.spans import Edge, edges

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
    profiles = [
        _profile(ring, thread, some, frames)
        for ring in rings
        for thread, some in sorted(edges(ring.events).items())
        if some
    ]
    told = {
        "$schema": SCHEMA,
        "name": safe_line(name, 200),
        "exporter": f"mldebug@{__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": frames.table()},
        "profiles": profiles,
    }
    yield msgspec.json.encode(told)


def _profile(ring: Ring, thread: int, some: Sequence[Edge], frames: _Frames) -> dict[str, object]:
    name = ring.name(thread) or f"thread {thread}"
    start = some[0].at
    return {
        "type": "evented",
        "name": f"{process_name(ring.header)}: {name}",
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": some[-1].at - start,
        "events": [
            {
                "type": "O" if edge.opens else "C",
                "frame": frames.number(edge.place),
                "at": edge.at - start,
            }
            for edge in some
        ],
    }
