"""A data-parallel training on gloo in which some ranks may be slower than the others; started by torchrun.

    torchrun --nproc-per-node 4 uneven.py --fault sleep --extra 0.06 --after 200 [--ranks 1,5] [--pace 0.15] [--until 2000]

Each step loads for `--pace` seconds, uses `--burn` seconds of CPU time, and trains a small model. From step `--after` on the struck ranks take `--extra`
seconds more in each step:

| fault | the struck ranks |
|---|---|
| `none` | are like the others: whoever has started the job makes them slow, or nobody |
| `sleep`, `work` | sleep, or use the CPU |
| `data` | have a DataLoader whose worker is slow |
| `read` | read the file `--file` anew, for as long as its mount takes |
| `files` | have a DataLoader whose worker reads that file for each sample |

With `--uneven 0.4` each rank's `--pace` is drawn anew in each step, by up to 40 % more or less: batches of uneven size. A file `--control` may hold
a JSON object with other values for `fault`, `extra`, `ranks`, `burn` and `uneven`; it is read before each step. It ends after step `--until`.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from leaving import leave
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[torch.Tensor]):
    """Random samples that take `seconds` each to make, and the reading of a file, where one is given."""

    def __init__(self, seconds: float, file: Path | None) -> None:
        self.seconds, self.file = seconds, file

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        if self.file is not None:
            with self.file.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.read()
        return torch.randn(8, 64)


def fetch(pace: float) -> torch.Tensor:
    """The part of a step that is alike on all ranks."""
    time.sleep(pace)
    return torch.randn(8, 64)


def compute(seconds: float) -> None:
    """Use so much CPU time, however long that takes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))


def augment(options: argparse.Namespace) -> None:
    """What a struck rank does more."""
    if options.fault == "sleep":
        time.sleep(options.extra)
    elif options.fault == "work":
        compute(options.extra)
    elif options.fault == "read":
        with options.file.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.read()


def batches(options: argparse.Namespace, struck: bool) -> Iterator[torch.Tensor]:
    """The samples of this rank."""
    if options.fault not in ("data", "files"):
        while True:
            yield fetch(options.pace * (1 + random.uniform(-options.uneven, options.uneven)))
    seconds = options.pace + (options.extra if struck else 0.0)
    file = options.file if struck and options.fault == "files" else None
    samples = Samples(seconds, file)
    yield from DataLoader(samples, batch_size=None, num_workers=1, prefetch_factor=1)


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--fault", choices=("none", "sleep", "work", "data", "read", "files"), default="none"
    )
    parser.add_argument("--extra", type=float, default=0.06)
    parser.add_argument("--pace", type=float, default=0.15)
    parser.add_argument("--burn", type=float, default=0.0)
    parser.add_argument("--uneven", type=float, default=0.0)
    parser.add_argument("--ranks", "--rank", default="1")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--control", type=Path)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--until", type=int, default=1_000_000)
    return parser.parse_args()


def is_struck(options: argparse.Namespace, step: int) -> bool:
    """Whether this rank is struck in this step, after the control file was read."""
    if options.control is not None and options.control.exists():
        vars(options).update(json.loads(options.control.read_text()))
    return step > options.after and dist.get_rank() in map(int, options.ranks.split(","))


def main() -> None:
    """Train."""
    options = read_options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    struck = is_struck(options, options.after + 1)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step, batch in enumerate(batches(options, struck), 1):
        if is_struck(options, step):
            augment(options)
        compute(options.burn)
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step >= options.until:
            break
    leave()


if __name__ == "__main__":
    main()
