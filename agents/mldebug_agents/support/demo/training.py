"""The training job of `mldebug demo`: a tiny model on a few ranks, until the chosen fault strikes one of them.

torchrun starts this file as a script; nothing imports it. Every rank keeps "STEP LOSS" in FOLDER/progress.RANK and
creates FOLDER/strike.RANK right before the fault strikes.
"""

import argparse
import ctypes
import datetime
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

FOREVER = datetime.timedelta(hours=1)
PR_SET_PDEATHSIG = 1


def train(options: argparse.Namespace, rank: int) -> None:
    """Train; at step `--after` the fault strikes rank `--rank` between the backward pass and the gradient average."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    step = 0
    while True:
        loss = forward_backward(model)
        if step == options.after and rank == options.rank:
            write_whole(options.folder / f"strike.{rank}", options.fault)
            FAULTS[options.fault](options.folder, loss)
        average_gradients(model)
        descend(model)
        step += 1
        write_whole(options.folder / f"progress.{rank}", f"{step} {loss.item():.4f}")
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def forward_backward(model: torch.nn.Module) -> torch.Tensor:
    """Train on one random batch without averaging the gradients yet, and return the loss (a scalar). A pause makes the step as
    long as a bigger model's.
    """
    inputs = torch.randn(64, 8)
    targets = inputs.sum(dim=1, keepdim=True)
    model.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    torch.autograd.backward(loss)
    time.sleep(0.03)
    return loss.detach()


def average_gradients(model: torch.nn.Module) -> None:
    """Average the gradients over all ranks; here the healthy ranks wait for the struck one."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


def descend(model: torch.nn.Module) -> None:
    """Update the weights by plain gradient descent. The first `torch.optim` optimizer of a process would import PyTorch's
    compiler, which takes as long again as PyTorch itself.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.03)


# --- the faults: each never returns ----------------------------------------------------------------


def fetch_from_slow_storage(folder: Path, loss: torch.Tensor) -> None:
    """The fault `sleep`: the rank waits for something that takes far too long."""
    time.sleep(3600)


def stop(folder: Path, loss: torch.Tensor) -> None:
    """The fault `stopped`: the rank sends itself SIGSTOP."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _aggregate_total_loss(folder: Path, loss: torch.Tensor) -> None:
    """mismatch: the rank took another branch and calls another collective than its peers."""
    dist.all_gather([loss.clone() for _ in range(dist.get_world_size())], loss)


def read_settings(folder: Path, loss: torch.Tensor) -> None:
    """The fault `fifo`: the rank reads a named pipe that no process writes to."""
    path = folder / "settings.fifo"
    os.mkfifo(path)
    path.read_text()


def evaluate(folder: Path, loss: torch.Tensor) -> None:
    """The fault `loop`: a computation that never ends."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def leave(folder: Path, loss: torch.Tensor) -> None:
    """The fault `dead`: the rank exits while a process that it has forked keeps its connections open, so no other rank notices."""
    launcher = Path(f"/proc/{os.getppid()}")
    if os.fork() == 0:
        write_whole(folder / "helper", str(os.getpid()))
        while launcher.exists():
            time.sleep(0.1)
    os._exit(0)


def update_statistics(folder: Path, loss: torch.Tensor) -> None:
    """The fault `lock`: the rank takes a lock that it already holds."""
    lock = threading.Lock()
    with lock, lock:
        pass


FAULTS: dict[str, Callable[[Path, torch.Tensor], None]] = {
    "sleep": fetch_from_slow_storage,
    "stopped": stop,
    "mismatch": _aggregate_total_loss,
    "fifo": read_settings,
    "loop": evaluate,
    "dead": leave,
    "lock": update_statistics,
}


# --- around it ----------------------------------------------------------------------------------------


def write_whole(path: Path, text: str) -> None:
    """Write a small file atomically: readers see all of it or nothing."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


def main() -> None:
    """Join the job and train. The rank is killed when its launcher ends, however it is stuck, so nothing of the demo is left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--rank", type=int, required=True, help="the rank that the fault strikes")
    parser.add_argument("--after", type=int, required=True, help="the step at which it strikes")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    rank = int(os.environ["RANK"])
    write_whole(options.folder / f"started.{rank}", f"{os.getpid()} {os.getppid()}")
    dist.init_process_group("gloo", timeout=FOREVER)
    train(options, rank)


if __name__ == "__main__":
    main()
