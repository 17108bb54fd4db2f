"""Some of the ways to hang again: with the hook, and with the hook where nobody may attach to a process."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.hangs import AGAIN, rows
from gpu.parts.hangs import KEEP


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Both modes."""
    keep = Path(os.environ.get(KEEP, folder))
    for mode, faults in AGAIN.items():
        for fault, value in rows(folder, keep, faults, mode, *options):
            yield f"{mode}: {fault}", value
