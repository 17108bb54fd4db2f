"""A small data-parallel training job that gets stuck on purpose.

Started by torchrun, or by hand with RANK and its companions in the environment. Every rank keeps the step it works on
in EVENTS/step.RANK and creates EVENTS/strike.RANK right before the fault strikes, so that a test waits for events.
"""

import argparse
import datetime
import os
import threading
import time
from pathlib import Path

import faults
import torch
import torch.distributed as dist
from leaving import leave
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

FOREVER = datetime.timedelta(days=1)


class Job:
    """What one rank knows of the job: its arguments, its model and how to announce what it does."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.events: Path = options.events
        self.struck = self.rank in options.ranks

    def build(self) -> None:
        """Make the model and the process groups; every rank must get here."""
        torch.manual_seed(7)
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )
        self.model = DistributedDataParallel(model) if self.options.ddp else model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        fault = self.options.fault
        swaps = fault in ("same_line", "first_use")
        self.second_group = dist.new_group(timeout=FOREVER) if swaps else None
        self.metrics_group = self.second_group if fault == "same_line" else None
        pairs = ([0, 1], [2, 3]) if fault == "tp_skip" else ()
        self.pairs = [dist.new_group(pair, timeout=FOREVER) for pair in pairs]
        self.batches = iter(self.loader())

    def loader(self) -> DataLoader:
        """Return the batches: in this process, or through one worker process."""
        data = TensorDataset(torch.randn(100_000, 16), torch.randn(100_000, 4))
        return DataLoader(data, batch_size=8, num_workers=self.options.workers)

    def announce(self, event: str, text: str = "") -> None:
        """Write EVENTS/EVENT.RANK at once and whole."""
        # not by `events.put`: what this file did last is what a trace of it tells
        path = self.events / f"{event}.{self.rank}"
        temporary = path.with_suffix(f".{self.rank}.new")
        temporary.write_text(text)
        temporary.replace(path)

    def strikes(self, fault: str, step: int) -> bool:
        """Tell whether this rank is hit by `fault` now, and announce it."""
        here = self.struck and self.options.fault == fault and step >= self.options.after
        if here and step == self.options.after:
            self.announce("strike", str(os.getpid()))
        return here


def train(job: Job) -> None:
    """Run the training loop; the fault strikes between the backward pass and the gradient average."""
    for step in range(job.options.steps):
        job.announce("step", str(step))
        if job.options.pace:
            time.sleep(job.options.pace)
        if job.options.fault == "spin" or job.options.fault == "spin_healthy":
            faults.device_step(job, step)
            continue
        loss = forward_backward(job, step)
        if job.options.fault == "same_line":
            reduce_in_order(job, loss, swapped=job.strikes("same_line", step))
        if job.options.fault == "first_use" and step >= job.options.after:
            reduce_in_order(job, loss, swapped=job.strikes("first_use", step))
        if job.strikes("mismatch", step):
            _aggregate_total_loss(job, loss)
        if job.pairs and not job.strikes("tp_skip", step):
            tensor_parallel(job, loss)
        if not job.strikes("skip", step):
            average_gradients(job)
        if job.options.fault == "no_send":
            hand_on(job, loss, skipped=job.strikes("no_send", step))
        share_loss(job, loss)
        job.optimizer.step()
        if job.rank == 0 and step % 5 == 0 and job.options.fault != "silent":
            print(f"step {step} loss {loss.item() / job.world_size:.4f}", flush=True)


def train_in_thread(job: Job) -> None:
    """As Ray does: the main thread only looks whether the training thread still lives."""
    thread = threading.Thread(target=train, args=(job,), name="trainer", daemon=True)
    thread.start()
    while thread.is_alive():
        time.sleep(0.3)


def forward_backward(job: Job, step: int) -> torch.Tensor:
    """One batch; with DDP the backward pass already averages the gradients."""
    inputs, targets = next(job.batches)
    job.optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(job.model(inputs), targets)
    fault = job.options.fault
    if fault in faults.STRIKES and job.strikes(fault, step):
        faults.STRIKES[fault](job)
    loss.backward()
    return loss.detach()


def average_gradients(job: Job) -> None:
    """Average the gradients by hand, one collective per parameter (DDP has done it)."""
    if job.options.ddp:
        return
    for parameter in job.model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= job.world_size


def tensor_parallel(job: Job, loss: torch.Tensor) -> None:
    """A collective among two neighbours."""
    dist.all_reduce(loss.clone(), group=job.pairs[job.rank // 2])


def share_loss(job: Job, loss: torch.Tensor) -> None:
    """Share the loss for the log; gloo pairs equal operations of one group, so who is a step ahead needs another."""
    if job.options.fault == "skip":
        dist.all_gather([loss.clone() for _ in range(job.world_size)], loss)
    else:
        dist.all_reduce(loss, group=job.metrics_group)


def hand_on(job: Job, loss: torch.Tensor, skipped: bool) -> None:
    """The last rank but one sends its loss to the last, or forgets to."""
    if job.rank == job.world_size - 1:
        dist.recv(loss.clone(), job.rank - 1)
    elif job.rank == job.world_size - 2 and not skipped:
        dist.send(loss, job.rank + 1)


def reduce_in_order(job: Job, loss: torch.Tensor, swapped: bool) -> None:
    """Reduce in two groups of the same ranks, on one line; a swapped order can never meet."""
    groups = [job.second_group, dist.group.WORLD]
    for group in reversed(groups) if swapped else groups:
        dist.all_reduce(loss, group=group)


def _aggregate_total_loss(job: Job, loss: torch.Tensor) -> None:
    dist.broadcast(loss, src=job.world_size - 1)


def rank_set(text: str) -> set[int]:
    """Read `6,7`; an empty text is no rank at all."""
    return {int(rank) for rank in text.split(",") if rank}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--ranks", type=rank_set, default={2})
    parser.add_argument("--after", type=int, default=10, help="strike at this step")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--pace", type=float, default=0, help="seconds to rest before each step")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader worker processes")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--library", default="", help="shared object for the fault `spin`")
    parser.add_argument("--path", default="", help="file for the faults that read one")
    parser.add_argument(
        "--server-pid", type=int, default=0, help="file system to stop before the read"
    )
    return parser.parse_args()


def main() -> None:
    """Join the job, train, leave."""
    job = Job(parse())
    job.announce("started", str(os.getpid()))
    if job.struck and job.options.fault == "late":
        job.announce("strike", str(os.getpid()))
        time.sleep(faults.AGES)
    dist.init_process_group("gloo", timeout=FOREVER)
    job.build()
    train_in_thread(job) if job.options.fault == "thread" else train(job)
    leave()


if __name__ == "__main__":
    main()
