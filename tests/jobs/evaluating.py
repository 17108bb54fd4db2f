"""A small job that does everything a dashboard shows: it trains, evaluates, and saves with torch.distributed.checkpoint, for ever.

usage: evaluating.py FOLDER: every 40 steps each rank evaluates for a second and saves 4 MiB into FOLDER/step_N.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint

import mldebug_training

PACE = 0.05
ROUND = 40


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """One step of data-parallel training, and its loss."""
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(PACE)
    return float(loss.detach())


class Slow(checkpoint.FileSystemWriter):
    """As on a slow disk: rank after rank is done."""

    def write_data(self, *args: Any) -> Any:
        """A second later for each rank."""
        time.sleep(dist.get_rank())
        return super().write_data(*args)


def save(folder: Path) -> None:
    """A shard of each rank."""
    folder.mkdir(exist_ok=True)
    state = {f"w{dist.get_rank()}": torch.ones(1 << 20)}
    checkpoint.save(state, storage_writer=Slow(folder))


def main() -> None:
    """Train, evaluate, save, and so on."""
    folder, number = Path(sys.argv[1]), 0
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        number += 1
        loss = step(model, optimizer)
        if dist.get_rank() == 0:
            print(f"step {number} loss {loss:.4f}", flush=True)
        if number % ROUND == 0:
            with mldebug_training.phase("evaluate"):
                time.sleep(1.0)
            save(folder / f"step_{number}")


if __name__ == "__main__":
    main()
