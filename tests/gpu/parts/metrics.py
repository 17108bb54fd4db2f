"""Every metric of ours beside nvidia-smi in the same second: without load, and in training."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import msgspec

from gpu import smi, world
from gpu.compare import table
from mldebug.gpus.counting import Counters
from mldebug.gpus.readings import NodeGpus
from mldebug_agents.gpus.nvidia import Nvidia

WINDOW = 1.0  # seconds: for the averages, and for the unit of the clock event counters


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """One table for each load."""
    with world.reader() as (reader, _):
        yield "idle", one_table(reader)
    with world.job(folder, "--ddp") as job, world.reader() as (reader, _):
        job.wait_for_step(100)
        yield "training", one_table(reader)


def one_table(reader: Nvidia) -> dict[str, Any]:
    """Rows, the seconds between our two reads, and the power by the energy counter."""
    counters = Counters()
    for _ in range(2):
        counters.take(reader.full())
        time.sleep(WINDOW)
    before = counters.take(reader.full())
    told = smi.read(world.ask_smi("-q", "-x"))
    after = counters.take(reader.full())
    rows = table(before, _with_links(told), after)
    return {
        "rows": msgspec.to_builtins(rows),
        "seconds": round(after.at - before.at, 3),
        "energy": [_by_energy(before, after, index) for index in range(len(after.gpus))],
        "unreadable": {one.index: one.unreadable for one in after.gpus if one.unreadable},
        "unsupported": {one.index: one.unsupported for one in after.gpus},
    }


def _with_links(told: dict[str, dict[smi.Key, smi.Value]]) -> Mapping[str, Mapping[smi.Key, smi.Value]]:  # fmt: skip
    """NVLink stands in two commands of its own; without them it is missing in the table."""
    try:
        links = smi.nvlink(world.ask_smi("nvlink", "-s"), world.ask_smi("nvlink", "-e"))
    except (CalledProcessError, OSError):
        return told
    return {uuid: one | links.get(uuid, {}) for uuid, one in told.items()}


def _by_energy(before: NodeGpus, after: NodeGpus, index: int) -> dict[str, float | None]:
    first, second = before.gpus[index], after.gpus[index]
    if first.energy_joules is None or second.energy_joules is None or after.at <= before.at:
        return {"watts": None, "average": second.power_average_watts}
    mean = (second.energy_joules - first.energy_joules) / (after.at - before.at)
    return {"watts": round(mean, 2), "average": second.power_average_watts}
