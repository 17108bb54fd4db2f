"""What the jobs of this folder share: a loop of four ranks on gloo that trains until its fault strikes at step 30.

`python locks.py EVENTS FAULT [STEPS]`: EVENTS is the folder in which each rank announces its pid; FAULT a function of the script.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

STRIKE = 30
STEP_SECONDS = 0.2

events = Path(sys.argv[1])
rank = int(os.environ["RANK"])
world = int(os.environ["WORLD_SIZE"])


def sync() -> None:
    """One collective of all ranks."""
    dist.all_reduce(torch.ones(64))


def log(step: int) -> None:
    """Rank 0 writes the step."""
    if rank == 0:
        print(f"step {step} loss 2.5", flush=True)


def start() -> None:
    """Join the others and announce the pid."""
    dist.init_process_group("gloo")
    fresh = events / f"new.{rank}"  # the test that waits for it never reads half
    fresh.write_text(str(os.getpid()))
    fresh.replace(events / f"started.{rank}")


def train(strike: Callable[[], object], batches: Iterable[object] = range(200)) -> None:
    """Synchronise once a step; call `strike` on every rank after step 30."""
    for step, _ in enumerate(batches):
        sync()
        log(step)
        time.sleep(STEP_SECONDS)
        if step == STRIKE:
            strike()


def main(faults: Mapping[str, Callable[[], object]]) -> None:
    """Run the fault that the command line names."""
    start()
    faults[sys.argv[2]]()
