"""A data-parallel training on gloo in which one rank may be slower than the others; started by torchrun.

    torchrun --nproc-per-node 4 uneven.py --fault sleep --extra 0.06 --after 200 [--rank 1] [--pace 0.15] [--until 2000]

Each step loads for `--pace` seconds and trains a small model. From step `--after` on the struck rank does `--extra` seconds more:
it sleeps, works, or (`data`) gets its samples from a DataLoader whose worker is slow. `none`: all are alike. It ends after step `--until`.
"""

import argparse
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[torch.Tensor]):
    """Random samples that take `seconds` each to make."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.randn(8, 64)


def fetch(pace: float) -> torch.Tensor:
    """The part of a step that is alike on all ranks."""
    time.sleep(pace)
    return torch.randn(8, 64)


def augment(fault: str, seconds: float) -> None:
    """What the struck rank does more."""
    if fault == "sleep":
        time.sleep(seconds)
        return
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))


def batches(options: argparse.Namespace, struck: bool) -> Iterator[torch.Tensor]:
    """The samples of this rank."""
    if options.fault != "data":
        while True:
            yield fetch(options.pace)
    seconds = options.pace + (options.extra if struck else 0.0)
    yield from DataLoader(Samples(seconds), batch_size=None, num_workers=1, prefetch_factor=1)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("none", "sleep", "work", "data"), default="none")
    parser.add_argument("--extra", type=float, default=0.06)
    parser.add_argument("--pace", type=float, default=0.15)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--until", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    struck = dist.get_rank() == options.rank
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step, batch in enumerate(batches(options, struck), 1):
        if struck and step > options.after and options.fault in ("sleep", "work"):
            augment(options.fault, options.extra)
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step >= options.until:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
