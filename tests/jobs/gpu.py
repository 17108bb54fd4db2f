"""A small NCCL job that gets stuck on purpose; started by torchrun on a machine with GPUs.

Every rank prints nothing but rank 0, which tells a step now and then. EVENTS/strike.RANK comes right before the fault.

With `--plan train:20,evaluate:10,checkpoint:10,train:5,sleep` it does one thing after the other, so many seconds each;
EVENTS/phase.NUMBER.NAME comes when one begins. `--ddp` trains layers under DistributedDataParallel; `--times` records steps;
`--cpu` does all of it small and on CPUs, for tests of whoever uses this.
"""

import argparse
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

FAULTS = ("none", "sleep", "loop", "evaluate", "broadcast", "checkpoint")
RECORD = struct.Struct("=qqq")  # nanoseconds: the clock, on a core, queued for one
SECONDS = 40.0  # of what ends by itself
BATCH_SECONDS = 4.0  # that a slow input needs
ON_CPU = "--cpu" in sys.argv
DEVICE = "cpu" if ON_CPU else "cuda"
SCALE = 128 if ON_CPU else 1
SIDE, BATCH = 4096 // SCALE, 8192 // SCALE
LARGE, SMALL = (1 << 26) // SCALE, 1 << 20
CACHED = 2048 // SCALE


def strike(fault: str, seconds: float, events: Path) -> None:
    """Get stuck, or seem to."""
    if fault == "sleep":
        time.sleep(100_000)
    if fault == "loop":
        while True:
            sum(range(1000))
    if fault == "evaluate":
        evaluate(seconds)
    if fault == "broadcast":
        share_settings()
    if fault == "checkpoint":
        save(events / "checkpoint", seconds)


def evaluate(seconds: float) -> None:
    """Compute without the others."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        one, other = (torch.randn(SIDE, SIDE, device=DEVICE) for _ in range(2))
        (one @ other).sum().item()


def share_settings() -> None:
    """Wait for what the others never send, while they wait in another collective; it is larger than theirs."""
    settings = torch.zeros(LARGE, device=DEVICE)
    dist.broadcast(settings, src=0)
    settings.sum().item()


def save(file: Path, seconds: float) -> None:
    """Write a checkpoint for so long."""
    state, end = torch.randn(LARGE), time.monotonic() + seconds
    while time.monotonic() < end:
        with file.open("wb") as out:
            torch.save(state, out)
            os.fsync(out.fileno())
    file.unlink()


def burn(seconds: float) -> None:
    """Products of matrices that stay in the cache: the power of work, and no memory traffic."""
    end = time.monotonic() + seconds
    one, other = (torch.randn(CACHED, CACHED, device=DEVICE).bfloat16() for _ in range(2))
    product = torch.empty_like(one)
    while time.monotonic() < end:
        for _ in range(400):
            torch.matmul(one, other, out=product)
        product[0, 0].item()


def train_slowly(one: Callable[[], float], seconds: float) -> None:
    """Every batch takes long to come."""
    for _ in range(round(seconds / BATCH_SECONDS)):  # of all ranks as often
        time.sleep(BATCH_SECONDS)
        one()


# --- training ------------------------------------------------------------------------------------


def plain_step() -> Callable[[], float]:
    """One matrix product, one all_reduce and one `.item()` a step: a healthy rank is mostly seen in the last."""
    weight = torch.randn(BATCH, BATCH, device=DEVICE)
    total = torch.zeros(SMALL, device=DEVICE)

    def step() -> float:
        loss = (weight @ weight).sum()
        dist.all_reduce(total)
        return loss.item() + total[0].item()

    return step


def layered_step() -> Callable[[], float]:
    """Eight layers in bfloat16 under DistributedDataParallel."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(SIDE, SIDE) for _ in range(8)))
    model = torch.nn.parallel.DistributedDataParallel(layers.to(DEVICE).bfloat16())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(BATCH, SIDE, device=DEVICE, dtype=torch.bfloat16)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(inputs).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


class Recorder:
    """A record of each step of this process; nothing where no file is wanted."""

    def __init__(self, path: Path | None) -> None:
        self._out = path.open("wb", buffering=0) if path else None
        self._account = os.open("/proc/thread-self/schedstat", os.O_RDONLY) if path else -1

    def step(self) -> None:
        """One is done."""
        if self._out:
            ran, queued, _ = map(int, os.pread(self._account, 100, 0).split())
            self._out.write(RECORD.pack(time.perf_counter_ns(), ran, queued))


def train(options: argparse.Namespace, rank: int) -> None:
    """Step until the fault strikes."""
    one = layered_step() if options.ddp else plain_step()
    recorder = Recorder(options.times if rank == 0 else None)
    for step in range(1_000_000_000):
        if rank == options.rank and step == options.after and options.fault != "none":
            (options.events / f"strike.{rank}").touch()
            strike(options.fault, SECONDS, options.events)
        value = one()
        recorder.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {value:.3f}", flush=True)


def follow(options: argparse.Namespace, rank: int) -> None:
    """One phase after the other; rank 0's clock says when training ends, which the others hear at each step."""
    one = layered_step() if options.ddp else plain_step()
    step, phase = 0, torch.zeros(1, device=DEVICE)
    for number, words in enumerate(options.plan.split(",")):
        name, _, result = words.partition(":")
        seconds = float(result or 0)
        if rank == 0:
            (options.events / f"phase.{number}.{name}").touch()
        end = time.monotonic() + seconds
        while name == "train":
            value = one()
            step += 1
            phase.fill_(float(time.monotonic() < end))
            dist.broadcast(phase, src=0)
            if rank == 0 and step % 20 == 0:
                print(f"step {step} loss {value:.3f}", flush=True)
            if not phase.item():
                break
        if name != "train":
            play(name, seconds, options, rank, one)
    while True:
        one()


def play(
    name: str, seconds: float, options: argparse.Namespace, rank: int, one: Callable[[], float]
) -> None:
    """A phase of all ranks that is no common training, or a checkpoint by rank 0 alone, or one rank's fault."""
    if name == "evaluate":
        evaluate(seconds)
    elif name == "starve":
        train_slowly(one, seconds)
    elif name == "burn":
        burn(seconds)
    elif name == "rest":
        time.sleep(seconds)
    elif name == "checkpoint":
        if rank == 0:
            save(options.events / "checkpoint", seconds)
        dist.barrier()
    elif rank == options.rank:
        (options.events / f"strike.{rank}").touch()
        strike(name, seconds, options.events)


def main() -> None:
    """Join the job and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--after", type=int, default=400)
    parser.add_argument("--plan")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--times", type=Path)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    if not options.cpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if options.cpu else "nccl")
    if options.plan:
        follow(options, rank)
    else:
        train(options, rank)


if __name__ == "__main__":
    main()
