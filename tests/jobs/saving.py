"""A job that trains a little and saves with torch.distributed.checkpoint: the first attempt dies halfway in its second save.

usage: saving.py FOLDER: each rank saves 4 MiB of its own into FOLDER/step_10, then dies in FOLDER/step_20 once its own
shard is written, before there is an index. Later attempts only count steps, each rank for itself: to join after such a death
may fail for minutes (gloo meets the ports of the ranks that died).
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import checkpoint


class Dying(checkpoint.FileSystemWriter):
    """Rank 2 of it is killed as soon as its shard is there."""

    def write_data(self, *args: Any) -> Any:
        """Write, and die."""
        written = super().write_data(*args)
        if dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return written


def train(first: int, last: int) -> None:
    """Some steps that the log tells."""
    for step in range(first, last):
        dist.all_reduce(torch.ones(8))
        if dist.get_rank() == 0:
            print(f"step {step} loss 0.5", flush=True)
        time.sleep(0.1)


def save(folder: Path, kind: type[checkpoint.FileSystemWriter]) -> None:
    """A shard of each rank."""
    state = {f"w{dist.get_rank()}": torch.ones(1 << 20)}
    checkpoint.save(state, storage_writer=kind(folder))


def main() -> None:
    """Train, save, train, die; or train on."""
    folder = Path(sys.argv[1])
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dist.init_process_group("gloo")
        train(0, 10)
        save(folder / "step_10", checkpoint.FileSystemWriter)
        train(10, 30)
        save(folder / "step_20", Dying)
    alone(10)


def alone(step: int) -> NoReturn:
    """Steps that the log tells, of a rank that waits for nobody."""
    while True:
        if os.environ["RANK"] == "0":
            print(f"step {step} loss 0.5", flush=True)
        step += 1
        time.sleep(0.1)


if __name__ == "__main__":
    main()
