"""A training job that saves its model again and again, and never removes one: until a save fails.

Rank 0 writes the time of each save to EVENTS/saved, and that of the one that failed to EVENTS/failed.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from events import put
from leaving import leave


def main() -> None:
    """Train, and save every `--every` seconds a model of 4 MiB into the current folder, or that of `--save-dir`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--every", type=float, default=1.5)
    parser.add_argument("--save-dir", type=Path, default=Path())
    options = parser.parse_args()
    dist.init_process_group("gloo")
    model, number, due = torch.randn(1 << 20), 0, time.monotonic()
    for step in range(1_000_000):
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 0:
            print(f"step {step} loss 1.0", flush=True)
        time.sleep(0.2)
        if dist.get_rank() == 0 and time.monotonic() >= due:
            number, due = number + 1, due + options.every
            try:
                save(model, options.save_dir / f"checkpoint-{number}.pt")
            except (OSError, RuntimeError):
                put(options.events / "failed", str(time.time()))
                time.sleep(600)
            put(options.events / "saved", str(number))
    leave()


def save(model: torch.Tensor, name: Path) -> None:
    """Into that file; what a trace of this job tells last where that does not return."""
    torch.save(model, name)


if __name__ == "__main__":
    main()
