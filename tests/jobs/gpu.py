"""A small NCCL job that gets stuck on purpose; started by torchrun on a machine with GPUs.

Every rank prints nothing but rank 0, which tells a step now and then. EVENTS/strike.RANK comes right before the fault.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

FAULTS = ("none", "sleep", "loop", "evaluate")


def strike(fault: str) -> None:
    """Get stuck, or seem to."""
    if fault == "sleep":
        time.sleep(100_000)
    if fault == "loop":
        while True:
            sum(range(1000))
    if fault == "evaluate":
        end = time.monotonic() + 40
        while time.monotonic() < end:
            (
                torch.randn(4096, 4096, device="cuda") @ torch.randn(4096, 4096, device="cuda")
            ).sum().item()


def train(options: argparse.Namespace, rank: int) -> None:
    """One matrix product, one all_reduce and one `.item()` a step: a healthy rank is mostly seen in the last."""
    weight = torch.randn(8192, 8192, device="cuda")
    total = torch.zeros(1 << 20, device="cuda")
    for step in range(1_000_000):
        loss = (weight @ weight).sum()
        if rank == options.rank and step == options.after and options.fault != "none":
            (options.events / f"strike.{rank}").touch()
            strike(options.fault)
        dist.all_reduce(total)
        value = loss.item() + total[0].item()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {value:.3f}", flush=True)


def main() -> None:
    """Join the job and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--after", type=int, default=400)
    options = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    train(options, rank)


if __name__ == "__main__":
    main()
