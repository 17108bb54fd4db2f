"""Every metric of ours beside nvidia-smi in the same second: without load, and in training.

It fails where one value differs, or where the energy counter tells another power than the driver's average; not before all is
told.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import msgspec

from gpu import smi, world
from gpu.compare import table
from gpu.timing import energies
from mldebug.hardware.gpu.counters import Counters
from mldebug.hardware.gpu.readings import NodeGpus
from mldebug_agents.hardware.gpu.nvml.watch_read import Energy
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia

WINDOW = 1.0  # seconds: for the averages, and for the unit of the clock event counters
SPAN = float(os.environ.get("MLDEBUG_GPU_SPAN", "10"))  # seconds between two answers on energy
NEAR = 0.1  # by what share of the average the power by energy may be off
FullReading = tuple[NodeGpus, dict[int, Energy]]  # a read, and each GPU's answer on its energy


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """One table for each load."""
    with world.reader() as (reader, _):
        idle = one_table(reader)
        yield "idle", idle
    with world.job(folder, "--ddp") as job, world.reader() as (reader, _):
        job.wait_for_step(100)
        training = one_table(reader)
        yield "training", training
    wrong = {"idle": disagreements(idle), "training": disagreements(training)}
    assert not any(wrong.values()), wrong


def disagreements(by_name: Mapping[str, Any]) -> list[str]:
    """Values that differ, and GPUs whose power by energy is far from their average."""
    rows = [one for one in by_name["rows"] if one["verdict"] == "differs"]
    found = [f"GPU {one['gpu']} {one['metric']} {one['labels']}".strip() for one in rows]
    powers = enumerate(by_name["energy"])
    return found + [f"GPU {index} power by energy" for index, one in powers if one["near"] is False]


def one_table(reader: Nvidia, span: float = SPAN) -> dict[str, Any]:
    """Rows, the seconds between our two reads, and the power by the energy counter over a longer time."""
    counters = Counters()
    for _ in range(2):
        counters.take(reader.full())
        time.sleep(WINDOW)
    before = counters.take(reader.full())
    begin = before, energies(reader)
    content = smi.read(world.ask_smi("-q", "-x"))
    after = counters.take(reader.full())
    rows = table(before, _with_links(content), after)
    time.sleep(span)
    end = reader.full(), energies(reader)
    return {
        "rows": msgspec.to_builtins(rows),
        "seconds": round(after.at - before.at, 3),
        "energy": [by_energy(begin, end, index) for index in range(len(after.gpus))],
        "unreadable": {one.index: one.unreadable for one in after.gpus if one.unreadable},
        "unsupported": {one.index: one.unsupported for one in after.gpus},
    }


def _with_links(by_name: dict[str, dict[smi.Key, smi.Value]]) -> Mapping[str, Mapping[smi.Key, smi.Value]]:  # fmt: skip
    """NVLink stands in two commands of its own; without them it is missing in the table."""
    try:
        links = smi.nvlink(world.ask_smi("nvlink", "-s"), world.ask_smi("nvlink", "-e"))
    except (CalledProcessError, OSError):
        return by_name
    return {uuid: one | links.get(uuid, {}) for uuid, one in by_name.items()}


def by_energy(begin: FullReading, end: FullReading, index: int) -> dict[str, Any]:
    """Watts between two answers, the mean of the averages that were told beside them, and whether the two are near."""
    (before, requests), (after, again) = begin, end
    averages = [one.gpus[index].power_average_watts for one in (before, after)]
    known = [one for one in averages if one is not None]
    average = sum(known) / len(known) if known else None
    first, last = requests.get(index), again.get(index)
    if first is None or last is None or first.joules is None or last.joules is None or last.at <= first.at:  # fmt: skip
        return {"watts": None, "average": average, "seconds": None, "near": None}
    seconds = last.at - first.at
    watts = (last.joules - first.joules) / seconds
    near = None if average is None else abs(watts - average) <= NEAR * average
    return {"watts": round(watts, 2), "average": average, "seconds": round(seconds, 2), "near": near}  # fmt: skip
