"""A data-parallel training on GPUs in which one rank becomes slower than the other; started by torchrun.

    torchrun --nproc-per-node 2 slow_gpu.py --events FOLDER --fault sleep [--after 60] [--rank 1] [--cpu]

A step takes about 0.2 s of matrix products. `--after` seconds from its first step the struck rank sleeps 0.1 s in each step (`sleep`),
trains on twice the rows (`batch`), launches more kernels (`kernels`), or nothing changes in it (`neighbour`: somebody else begins to use its GPU; `none`). EVENTS/strike.RANK is made then.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, ROWS = 4096, 24, 16384
PRODUCTS = 150  # 0.03 to 0.06 s of an H200 or H100


def augment(seconds: float) -> None:
    """What a rank does on its host before its step."""
    time.sleep(seconds)


def multiply(weight: torch.Tensor, products: int) -> None:
    """What a rank has its GPU do before its step; the host does not wait for it."""
    for _ in range(products):
        torch.mm(weight, weight)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument(
        "--fault", choices=("none", "sleep", "batch", "kernels", "neighbour"), default="none"
    )
    parser.add_argument("--after", type=float, default=60.0)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo" if options.cpu else "nccl")
    rank = dist.get_rank()
    device = torch.device("cpu") if options.cpu else torch.device("cuda", rank)
    width, rows = (64, 64) if options.cpu else (WIDTH, ROWS)
    if not options.cpu:
        torch.cuda.set_device(device)
    layers = [torch.nn.Linear(width, width) for _ in range(LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    weight = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    began, struck, step = time.monotonic(), False, 0
    while True:
        step += 1
        if not struck and time.monotonic() - began > options.after:
            struck = True
            if rank == options.rank:
                (options.events / f"strike.{rank}").touch()
        own = struck and rank == options.rank
        if own and options.fault == "sleep":
            augment(0.1)
        if own and options.fault == "kernels":
            multiply(weight, PRODUCTS)
        more = 2 if own and options.fault == "batch" else 1
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(torch.randn(rows * more, width, device=device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
