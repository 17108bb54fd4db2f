"""A job with a scripted life that notes what it does when: it starts, steps, evaluates, saves, steps, and hangs; started again, it resumes
from its checkpoint, does the steps since then again, makes some new ones, and waits.

    torchrun --nproc-per-node 2 scripted.py --output_dir FOLDER

`FOLDER/marks.jsonl` gets a line for each stretch: `{"at": unix seconds, "attempt": 0, "use": "startup"}`; the stretch ends with the next line.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint

PACE = 0.2
STARTUP = 12.0  # seconds from the start of the processes to the first step
EVALUATED, SAVED, LAST, RESUMED_LAST = 100, 140, 210, 290  # steps
COUNTS, COUNT = 24, 0.5  # of an evaluation, seconds of each
SLOW = 8.0  # seconds for which a shard takes longer than the memory behind it


def process_start() -> float:
    """When this process was started, in unix seconds."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")


class Slow(checkpoint.FileSystemWriter):
    """As on a slow disk."""

    def write_data(self, *args: Any) -> Any:
        """Some seconds later than a quick one."""
        written = super().write_data(*args)
        time.sleep(SLOW)
        return written


class Life:
    """One attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rank = folder, dist.get_rank()
        self.attempt = int((folder / "step_140").exists())
        self.model = torch.nn.Linear(1024, 1024)

    def mark(self, use: str, at: float | None = None) -> None:
        """Note that a stretch begins."""
        if self.rank == 0:
            line = {"at": time.time() if at is None else at, "attempt": self.attempt, "use": use}
            with (self.folder / "marks.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def steps(self, use: str, first: int, last: int) -> None:
        """Make these steps."""
        self.mark(use)
        for step in range(first, last + 1):
            time.sleep(PACE)
            dist.all_reduce(torch.ones(8))
            if self.rank == 0:
                print(f"step {step} loss {3 - step / 200:.4f}", flush=True)

    def evaluate(self) -> None:
        """An evaluation that draws a bar, line by line."""
        self.mark("evaluation")
        for count in range(1, COUNTS + 1):
            time.sleep(COUNT)
            if self.rank == 0:
                share, left = 100 * count // COUNTS, (COUNTS - count) * COUNT
                print(f"Evaluating: {share:3}%|#| {count}/{COUNTS} [00:{count * COUNT:02.0f}<00:{left:02.0f},  2.00it/s]", flush=True)  # fmt: skip
        dist.barrier()

    def save(self) -> None:
        """A shard of each rank; the steps wait for it."""
        self.mark("checkpoint")
        state = {f"w{self.rank}": self.model.weight.detach()}
        checkpoint.save(state, storage_writer=Slow(self.folder / "step_140"))
        dist.barrier()

    def hang(self) -> None:
        """Rank 1 waits for nothing, and rank 0 for it."""
        self.mark("stall")
        if self.rank == 1:
            time.sleep(100_000)
        dist.all_reduce(torch.ones(8))


def main() -> None:
    """Live once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path)
    began = process_start()
    dist.init_process_group("gloo")
    life = Life(parser.parse_args().output_dir)
    life.mark("startup", began)
    time.sleep(max(0.0, began + STARTUP - time.time()))
    dist.barrier()
    if life.attempt:
        life.steps("lost_work", SAVED + 1, LAST)
        life.steps("productive", LAST + 1, RESUMED_LAST)
        life.mark("end")
        time.sleep(100_000)
    life.steps("productive", 1, EVALUATED)
    life.evaluate()
    life.steps("productive", EVALUATED + 1, SAVED)
    life.save()
    life.steps("productive", SAVED + 1, LAST)
    life.hang()


if __name__ == "__main__":
    main()
