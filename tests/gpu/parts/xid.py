"""The driver's own events: the set registers. An Xid cannot be made on purpose without harm; the fake library raises those."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu import world
from gpu.eventset import registered


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """Register, ask, let go."""
    with world.reader() as (reader, library):
        yield "registered", registered(library)
        yield "events_at_first_watch", len(reader.watch().events)
    yield (
        "note",
        "no Xid was raised on real GPUs: nothing safe does; the tests raise them in the fake library",
    )
