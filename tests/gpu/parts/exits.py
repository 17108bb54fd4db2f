"""Ranks that are wrecked in the ways that collectives and CUDA have, each under an agent of its own: what the report says beside what was done."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.parts.hangs import KEEP
from gpu.wrecks import tried

CASES = ("assert", "illegal", "oom", "exit", "skew", "kernel", "hook-skew", "hook-kernel")
WANTED = "MLDEBUG_GPU_WRECKS"  # which of them, with commas
SPAN = 525.0  # seconds of all
LONGEST = 125.0  # seconds that one case may take: none begins that could not end


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Every fault once, as far as the time goes; `--cpu` among the options: without a GPU."""
    end = time.monotonic() + SPAN
    wanted = [one for one in os.environ.get(WANTED, "").split(",") if one] or CASES
    for case in wanted:
        if time.monotonic() + LONGEST > end:
            yield case, {"result": "left out", "error": "no time was left"}
        else:
            keep = Path(os.environ.get(KEEP, folder)) / "wrecks" / case
            yield case, tried(case, keep, cpu="--cpu" in options)
