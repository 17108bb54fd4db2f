"""The driver's own events: the set registers. None is raised here: `xid13` does that, where it is named, and the fake library."""

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
        "this part raises no Xid: `xid13` does, where it is named; the tests raise them in the fake library",
    )
