"""What both reads cost, without load and in training; the dearest calls; other ways to ask for what the watch needs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu import world
from gpu.timing import Cost, candidates, dearest, read_costs
from mldebug_agents.hardware.gpu.nvml.library import Library
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia

ROUNDS = 50
PAUSE = 0.2  # seconds
WAYS, WAY_PAUSE = 8, 0.1


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """Costs with and without load."""
    with world.reader() as (reader, library):
        yield "idle", costs(reader, library)
    with world.job(folder, "--ddp") as job, world.reader() as (reader, library):
        job.wait_for_step(100)
        yield "training", costs(reader, library)
        yield "ways", candidates(library, WAYS, WAY_PAUSE)


def costs(reader: Nvidia, library: Library, rounds: int = ROUNDS) -> dict[str, Any]:
    """Both reads, and which calls take the time."""
    results = [_row(one) for one in read_costs(reader, rounds, PAUSE)]
    return {
        "reads": results,
        "dearest": {read: dearest(reader, library, read) for read in ("watch", "full")},
    }


def _row(cost: Cost) -> dict[str, Any]:
    wall, cpu = cost.of_eight
    return {
        "what": cost.what,
        "gpus": cost.gpus,
        "rounds": cost.rounds,
        "wall_ms": cost.wall,
        "cpu_ms": cost.cpu,
        "wall_ms_of_8": wall,
        "cpu_ms_of_8": cpu,
        "asked_energy": cost.requests,
        "energy_ms": cost.energy,
        "first_ms": cost.first,
    }
