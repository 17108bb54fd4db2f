"""Flight Recorders without the hook as `ways`, but with recorders that are full: 2,000 calls of each rank, of which a dump takes long.

A report does not wait for such a dump, nobody is asked twice for it, and a later capture reads it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.parts.ways import Recorder, rows

SIZE = "2000"
ROWS = (("fifo", "sleep"), ("fifo", "frozen"), ("server", "frozen"), ("fifo", "off_by_one"))
FULL = Recorder(
    "full", 400, 200.0, 90.0, {"TORCH_FR_BUFFER_SIZE": SIZE, "TORCH_NCCL_TRACE_BUFFER_SIZE": SIZE}
)  # six calls a step
LONGEST = 125.0  # seconds that a row usually takes at most


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """As many as the time allows."""
    yield from rows(folder, ROWS, FULL, LONGEST, *options)
