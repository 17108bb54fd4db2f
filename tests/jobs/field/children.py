"""Ranks that wait for a process of their own: a forked writer, a program, a worker of their loader."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import torch
from loop import log, main, rank, sync, train
from torch.utils.data import DataLoader, Dataset


def stuck_writer() -> None:
    """Rank 1 joins a forked writer that waits for a lock which a thread of its parent held at the fork."""
    lock = threading.Lock()

    def write_shard(path: str) -> None:
        with lock:
            open(path, "w").close()

    def hold() -> None:
        with lock:
            time.sleep(3)

    def close(writer: multiprocessing.process.BaseProcess) -> None:
        writer.join()

    for step in range(200):
        sync()
        log(step)
        time.sleep(0.2)
        if step == 30 and rank == 1:
            threading.Thread(target=hold, daemon=True).start()
            time.sleep(0.3)
            fork = multiprocessing.get_context("fork")
            writer = fork.Process(target=write_shard, args=("shard.bin",))
            writer.start()
        if step == 34 and rank == 1:
            close(writer)


def endless_program() -> None:
    """Rank 0 waits for a program that never ends."""

    def upload_checkpoint() -> None:
        if rank == 0:
            subprocess.run(["sleep", "100000"], check=True)

    train(upload_checkpoint)


class Rows(Dataset):
    """Rows of which one has its worker do something else."""

    def __init__(self, fault: Callable[[], object]) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        if rank == 2 and index == 160:
            return self.decode()
        return torch.ones(8)

    def decode(self) -> torch.Tensor:
        self.fault()
        return torch.ones(8)


def inherited_lock() -> None:
    """A worker of rank 2 waits for a native lock that was held when it was forked."""
    libc = ctypes.CDLL(None)
    mutex = (ctypes.c_char * 64)()
    libc.pthread_mutex_init(ctypes.byref(mutex), None)

    def hold() -> None:
        libc.pthread_mutex_lock(ctypes.byref(mutex))
        time.sleep(1.5)
        libc.pthread_mutex_unlock(ctypes.byref(mutex))

    def fault() -> None:
        libc.pthread_mutex_lock(ctypes.byref(mutex))
        libc.pthread_mutex_unlock(ctypes.byref(mutex))

    threading.Thread(target=hold).start()
    time.sleep(0.5)
    train(lambda: None, DataLoader(Rows(fault), batch_size=4, num_workers=2))


def worker_bus_error() -> None:
    """A worker of rank 2 dies of SIGBUS, as in a full /dev/shm."""

    def fault() -> None:
        os.kill(os.getpid(), signal.SIGBUS)

    train(lambda: None, DataLoader(Rows(fault), batch_size=4, num_workers=2))


if __name__ == "__main__":
    main(
        {
            "stuck_writer": stuck_writer,
            "endless_program": endless_program,
            "inherited_lock": inherited_lock,
            "worker_bus_error": worker_bus_error,
        }
    )
