"""Lightning, the HF Trainer and FSDP2, as they are, hang in six ways on two GPUs: noticed when, and who was named.

`MLDEBUG_GPU_FRAMEWORKS=lightning:worker,fsdp2:both` runs only those: eighteen rows of up to two minutes are more than one call.
`trainer:healthy` among them is watched for `MLDEBUG_GPU_HEALTHY` seconds (480), in which nothing may be reported.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.untouched import KINDS, healthy, rows

WANTED = "MLDEBUG_GPU_FRAMEWORKS"
SECONDS = "MLDEBUG_GPU_HEALTHY"
SPAN = 505.0  # seconds for all of them; the last one ends within it


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Each row that was named, or all."""
    names = [one for one in os.environ.get(WANTED, "").split(",") if one]
    for kind in KINDS:
        if f"{kind}:healthy" in names:
            names.remove(f"{kind}:healthy")
            found = healthy(folder, kind, float(os.environ.get(SECONDS, "480")), *options)
            print(f"{kind}:healthy", found, flush=True)
            yield f"{kind}:healthy", found
            if not names:
                return
    for name, value in rows(folder, names, SPAN, *options):
        print(name, {agent: shown(one) for agent, one in value.items()}, flush=True)
        yield name, value


def shown(table: dict[str, Any]) -> str:
    """A row in the log while it runs."""
    keys = ("result", "worried_after_s", "report_after_s", "late_s", "verdict", "named")
    return ", ".join(f"{key} {table[key]}" for key in keys if key in table)
