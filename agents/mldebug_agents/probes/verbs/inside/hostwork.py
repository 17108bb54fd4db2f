"""What the host itself is put through. Figures are bytes per second."""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from typing import Any

DRAM = 256 << 20  # bytes; a quarter of what is available at most
DISK = 1 << 30
BLOCK = 8 << 20
DISK_SECONDS = 15.0
LEFT = 0.9  # of what is free on a disk stays free


def dram(order: dict[str, Any]) -> dict[str, Any]:
    """Copy within memory with all processors: what is read and written."""
    torch = import_module("torch")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    size = max(1 << 20, min(DRAM, _available() // 8))
    source = torch.full((size,), 7, dtype=torch.uint8)
    target = torch.zeros(size, dtype=torch.uint8)
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begin)
    wrong = int((target != 7).sum().item())
    return {"bandwidth": 2 * size / statistics.median(times), "wrong": wrong}


def disk(order: dict[str, Any]) -> dict[str, Any]:
    """Write a file that is gone afterwards: directly where the filesystem can, and synced in any case. `absent`: there is no such folder."""
    folder = order["disk"]
    if not os.path.isdir(folder):
        return {"absent": folder}
    stat = os.statvfs(folder)
    size = min(DISK, int(stat.f_bavail * stat.f_frsize * (1 - LEFT))) // BLOCK * BLOCK
    if not size:
        raise OSError(f"too little is free in {folder}")
    block = mmap.mmap(-1, BLOCK)  # aligned, as direct writes need it
    block.write(os.urandom(BLOCK))
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        direct = _set_direct(file.fileno())
        begin, written = time.perf_counter(), 0
        while written < size and time.perf_counter() - begin < DISK_SECONDS:
            written += os.write(file.fileno(), block)
        os.fsync(file.fileno())
        seconds = time.perf_counter() - begin
    return {"bandwidth": written / seconds, "bytes": written, "direct": direct}


def _set_direct(descriptor: int) -> bool:
    fcntl = import_module("fcntl")
    with suppress(OSError):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        return True
    return False


def _available() -> int:
    """Bytes of host memory that can be had without pushing anybody out."""
    with open("/proc/meminfo", encoding="ascii") as text:
        for line in text:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
