"""Ranks, and workers of their loaders, that wait for a lock on a file or for somebody to open a FIFO."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from loop import events, main, rank, train
from torch.utils.data import DataLoader, Dataset

PATH = events / "cache.lock"
HOLD = "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.{0}(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(100000)"


def circle(lock: Callable[..., None]) -> None:
    """Rank 0 keeps the lock and waits for those that want it."""

    def build_cache() -> None:
        with PATH.open("w") as file:
            if rank:
                time.sleep(1)
            lock(file, fcntl.LOCK_EX)
            if rank == 0:
                time.sleep(2)
                dist.barrier()
        dist.barrier()

    train(build_cache)


def held_by_sleeper() -> None:
    """Rank 3 keeps the lock and sleeps, ranks 0 and 1 want it, rank 2 waits for them all."""

    def build_cache() -> None:
        if rank == 2:
            return
        with PATH.open("w") as file:
            if rank != 3:
                time.sleep(1)
            fcntl.flock(file, fcntl.LOCK_EX)
            if rank == 3:
                time.sleep(100_000)

    train(build_cache)


def stranger(kind: str) -> None:
    """A program that is no part of the job keeps the lock that rank 2 wants."""

    def build_cache() -> None:
        if rank != 2:
            return
        hold_elsewhere(kind)
        with PATH.open("w") as file:
            getattr(fcntl, kind)(file, fcntl.LOCK_EX)

    train(build_cache)


def hold_elsewhere(kind: str) -> None:
    """Start a program without parent that keeps the lock, and wait until it does."""
    script = f'{sys.executable} -c "{HOLD.format(kind)}" {PATH} > {events / "held"} &'
    (events / "held").touch()
    subprocess.run(["setsid", "sh", "-c", script], check=True)
    while (events / "held").read_text() != "held\n":
        time.sleep(0.05)


class Rows(Dataset):
    """Rows of which one makes its worker wait."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self.wait = wait

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        if rank == 2 and index == 160:
            self.wait()
        return torch.ones(8)


def in_worker(wait: Callable[[], object]) -> None:
    """A loader with one worker on each rank."""
    if rank == 2:
        (events / "settings.fifo").exists() or os.mkfifo(events / "settings.fifo")
        hold_elsewhere("flock" if sys.argv[2] == "worker_flock" else "lockf")
    train(lambda: None, DataLoader(Rows(wait), batch_size=4, num_workers=1))


def read_fifo() -> str:
    return Path(events / "settings.fifo").read_text()


def take_flock() -> None:
    with PATH.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def take_lockf() -> None:
    with PATH.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)


if __name__ == "__main__":
    main(
        {
            "flock_circle": lambda: circle(fcntl.flock),
            "lockf_circle": lambda: circle(fcntl.lockf),
            "flock_sleeper": held_by_sleeper,
            "flock_stranger": lambda: stranger("flock"),
            "lockf_stranger": lambda: stranger("lockf"),
            "worker_fifo": lambda: in_worker(read_fifo),
            "worker_flock": lambda: in_worker(take_flock),
            "worker_lockf": lambda: in_worker(take_lockf),
        }
    )
