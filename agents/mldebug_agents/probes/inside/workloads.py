"""The loads that the node probe puts on one GPU, or on all of a node. Figures are per second."""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from typing import Any, Callable

from .collectives import available

MARGIN = 2 << 30  # bytes of free memory that are left: the context grows, and comparing takes some
CHUNK = 1 << 30
SIDE = 8192  # of the matrices
ROWS = 32  # of the product that the CPU computes, too
MATMUL_SECONDS = 5.0  # until clocks and power have settled
CALLS = 24  # of one round
FP8_ROUNDS = 20
COPY = 256 << 20  # bytes
REPEATS = 8


def memory(gpu: int) -> dict[str, Any]:
    """Allocate nearly all free memory of the GPU, write it, and read it back. Returns the GPU's `name`, the bytes `free`,
    in `total` and `taken`, and how many bytes were read back `wrong`.
    """
    torch = _on(gpu)
    free, total = torch.cuda.mem_get_info()
    chunks = []
    for number in range(max(0, free - max(MARGIN, total // 50)) // CHUNK):
        chunks.append(torch.full((CHUNK,), number % 251, dtype=torch.uint8, device="cuda"))
    wrong = 0
    for number, chunk in enumerate(chunks):
        wrong += sum(int((part != number % 251).sum().item()) for part in chunk.chunk(8))
    name = torch.cuda.get_device_name()
    taken = len(chunks) * CHUNK
    return {"name": name, "free": free, "total": total, "taken": taken, "wrong": wrong}


def matmul(gpu: int) -> dict[str, Any]:
    """Multiply matrices for some seconds. All numbers are small and whole, so every product has one exact value. Returns
    `flops` (per second), how many elements were `wrong`, how many products were `differing` from the first one, and
    `checksum`, `name` and `dtype`.
    """
    torch = _on(gpu)
    kind = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    seed = torch.Generator().manual_seed(20)
    left, right = (
        torch.randint(-1, 2, (SIDE, SIDE), generator=seed, dtype=torch.int8) for _ in "lr"
    )
    expected = (left[:ROWS].float() @ right.float()).to(kind)
    a, b = left.to("cuda").to(kind), right.to("cuda").to(kind)
    product = a @ b
    wrong = int((product[:ROWS].cpu() != expected).sum().item())
    first = _checksum(torch, product)
    times: list[float] = []
    differing = 0
    until = time.monotonic() + MATMUL_SECONDS
    while len(times) < 3 or time.monotonic() < until:
        times.append(_seconds(torch, lambda: torch.matmul(a, b, out=product), CALLS))
        differing += _checksum(torch, product) != first
    rate = 2 * SIDE**3 / statistics.median(times[1:])
    name = torch.cuda.get_device_name()
    return {"flops": rate, "wrong": wrong, "differing": differing, "checksum": first, "name": name, "dtype": str(kind)}  # fmt: skip


def fp8(gpu: int) -> dict[str, Any]:
    """Multiply matrices of 8-bit floats. Returns `flops` (per second) and `name`. Raises where this GPU or PyTorch multiplies none."""
    torch = _on(gpu)
    left, right = (torch.ones((SIDE, SIDE), dtype=torch.bfloat16, device="cuda") for _ in "lr")
    multiply = fp8_product(torch, left, right)
    times = [_seconds(torch, multiply, CALLS) for _ in range(FP8_ROUNDS)]
    return {"flops": 2 * SIDE**3 / statistics.median(times[1:]), "name": torch.cuda.get_device_name()}  # fmt: skip


def fp8_product(torch: Any, left: Any, right: Any) -> Callable[[], Any]:
    """What multiplies two matrices of small whole numbers as 8-bit floats (e4m3), into bfloat16. Raises where it cannot be done."""
    kind = torch.float8_e4m3fnuz if torch.version.hip else torch.float8_e4m3fn
    one = torch.ones((), dtype=torch.float32, device=left.device)
    a, b = left.to(kind), right.t().contiguous().to(kind).t()  # the second one by columns
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def copies(gpu: int) -> dict[str, Any]:
    """Copy from pinned host memory to the GPU, back, and within the GPU. Returns bytes per second by direction
    (`host_to_device`, `device_to_host`, `device_to_device`: read plus written), and the GPU's `name`.
    """
    torch = _on(gpu)
    host = torch.empty(COPY, dtype=torch.uint8, pin_memory=True)
    here, there = (torch.empty(COPY, dtype=torch.uint8, device="cuda") for _ in "ab")
    figures: dict[str, Any] = {"name": torch.cuda.get_device_name()}
    for figure, target, source, moved in (
        ("host_to_device", here, host, COPY),
        ("device_to_host", host, here, COPY),
        ("device_to_device", there, here, 2 * COPY),
    ):
        copy = _copying(target, source)
        _seconds(torch, copy, 2)
        figures[figure] = moved / statistics.median(
            _seconds(torch, copy, 4) for _ in range(REPEATS)
        )
    return figures


def peers(gpus: int) -> dict[str, Any]:
    """Copy between each pair of GPUs. Returns `pairs`: for each the `pair`, whether it has peer `access`, and its
    `bandwidth` (bytes per second of the slower direction). Raises ValueError where a copy arrives damaged.
    """
    torch = import_module("torch")
    pairs = []
    buffers = [torch.empty(COPY, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in range(gpus)]
    for a in range(gpus):
        for b in range(a + 1, gpus):
            speeds = [
                _copied(torch, buffers[a], buffers[b]),
                _copied(torch, buffers[b], buffers[a]),
            ]
            access = all(torch.cuda.can_device_access_peer(*pair) for pair in ((a, b), (b, a)))
            pairs.append({"pair": [a, b], "access": access, "bandwidth": min(speeds)})
    return {"pairs": pairs}


def _copied(torch: Any, target: Any, source: Any) -> float:
    source.fill_(7)
    target.fill_(0)
    copy = _copying(target, source)
    with torch.cuda.device(source.device):
        _seconds(torch, copy, 2)
        speed = COPY / statistics.median(_seconds(torch, copy, 4) for _ in range(REPEATS))
    if int((target != 7).sum().item()):
        raise ValueError(f"bytes copied from {source.device} to {target.device} are wrong")
    return float(speed)


def _copying(target: Any, source: Any) -> Callable[[], Any]:
    return lambda: target.copy_(source, non_blocking=True)


def _on(gpu: int) -> Any:
    torch = import_module("torch")
    torch.set_num_threads(2)
    torch.cuda.set_device(gpu)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    return torch


def _seconds(torch: Any, call: Callable[[], Any], calls: int) -> float:
    """Of one call, by events around so many."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end) / 1000 / calls)


def _checksum(torch: Any, product: Any) -> int:
    """Of all bits, with their places."""
    places = torch.arange(1, product.shape[1] + 1, device=product.device, dtype=torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=product.device)
    for rows in product.view(torch.int16).split(1024):
        total += (rows.to(torch.int64) * places).sum()
    return int(total.item())


DRAM = 256 << 20  # bytes; a quarter of what is available at most


DISK = 1 << 30


BLOCK = 8 << 20


DISK_SECONDS = 15.0


LEFT = 0.9  # of what is free on a disk stays free


def dram(order: dict[str, Any]) -> dict[str, Any]:
    """Copy within host memory with all processors. Returns `bandwidth` (bytes per second read and written), and how many
    bytes were `wrong`. `order` is not used: all loads of a node are called alike.
    """
    torch = import_module("torch")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    size = max(1 << 20, min(DRAM, available() // 8))
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
    """Write and sync a temporary file, past the page cache where the filesystem allows it, and return its speed
    (`bandwidth`, bytes per second), its size and whether the page cache was avoided (`direct`); only `absent` where the folder
    does not exist. Raises OSError where too little is free.
    """
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
    with suppress(OSError):  # this filesystem has no direct I/O: the result says so
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        return True
    return False
