"""A job that nobody touched hangs in eleven ways; what it takes to judge them again is kept beside the figures."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.hangs import HANGS, rows

KEEP = "MLDEBUG_GPU_KEEP"  # a folder for what the agents wrote
WANTED = "MLDEBUG_GPU_HANGS"  # which of them, with commas


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Every fault once."""
    wanted = os.environ.get(WANTED, "").split(",")
    faults = [one.fault for one in HANGS if wanted == [""] or one.fault in wanted]
    yield from rows(folder, Path(os.environ.get(KEEP, folder)), faults, "untouched", *options)
