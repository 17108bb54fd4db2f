"""One rank in one trial: alone it computes, with others it times all_reduce and checks the values."""

from __future__ import annotations

import datetime
import os
import time
from importlib import import_module
from typing import Any

from .collectives import SHARE as OF_GPU
from .collectives import available

SHARE = 0.25  # of a step that timing may take: starting costs more
BUFFERS = 5  # times the payload that a seat takes at once
SIDE = 1024  # of the matrices that a seat multiplies alone


def run_seat(order: dict[str, Any]) -> dict[str, Any]:
    """Run one rank of a group. Returns `bandwidth` (bus bytes per second, None alone), `wrong` and `seconds`, or raises."""
    began = time.monotonic()
    torch = import_module("torch")
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if order["device"] == "cuda":
        device = torch.device("cuda", order["local"])
        torch.cuda.set_device(device)
    if order["world"] == 1:
        wrong = not _computes(torch, device)
        return {"bandwidth": None, "wrong": wrong, "seconds": time.monotonic() - began}
    _check_memory(torch, device, order)
    seconds = datetime.timedelta(seconds=order["step"])
    store = torch.distributed.TCPStore(
        order["address"], order["port"], is_master=False, timeout=seconds, wait_for_workers=False
    )
    os.environ.update(LOCAL_RANK=str(order["local"]))
    torch.distributed.init_process_group(
        "nccl" if order["device"] == "cuda" else "gloo",
        store=torch.distributed.PrefixStore(order["prefix"], store),
        rank=order["position"],
        world_size=order["world"],
        timeout=2 * seconds,  # the deadline of the step comes first: then it is known who was late
    )
    wrong = not _adds(torch, device, order)
    bandwidth = _time(torch, device, order)
    torch.distributed.barrier()  # whoever is first to leave must not end the others
    return {"bandwidth": bandwidth, "wrong": wrong, "seconds": time.monotonic() - began}


def _check_memory(torch: Any, device: Any, order: dict[str, Any]) -> None:
    """Raise MemoryError for a payload that would take more than a share of what is free."""
    if device.type == "cuda":
        may = int(torch.cuda.mem_get_info()[0] * OF_GPU)
    else:
        may = available() // 4 // order["seats"]
    if BUFFERS * order["bytes"] > may:
        need = BUFFERS * order["bytes"]
        raise MemoryError(f"a payload of {order['bytes']} bytes needs {need}, {may} may be taken")


def _computes(torch: Any, device: Any) -> bool:
    """Products of small whole numbers are exact."""
    left = (torch.arange(SIDE * SIDE, device=device) % 3).reshape(SIDE, SIDE).float()
    ones = torch.ones(SIDE, SIDE, device=device)
    product = left @ ones
    return bool(
        torch.equal(product[:, 0], left.sum(1)) and torch.equal(product[:, -1], left.sum(1))
    )


def _adds(torch: Any, device: Any, order: dict[str, Any]) -> bool:
    """One all_reduce of numbers whose sum is exact; the first call also makes the connections."""
    world, count = order["world"], max(1, order["bytes"] // 4)
    base = (torch.arange(count, device=device) % 113).float()
    buffer = base + order["position"]
    torch.distributed.all_reduce(buffer)
    return bool(torch.equal(buffer, base * world + world * (world - 1) / 2))


def _time(torch: Any, device: Any, order: dict[str, Any]) -> float:
    """Bytes per second on the bus, by the first quartile of times as this seat saw it: other work disturbs some, a fault all of them."""
    world, count = order["world"], max(1, order["bytes"] // 4)
    buffer = torch.zeros(count, device=device)
    first = _once(torch, device, buffer)
    fitting = torch.tensor([order["step"] * SHARE / max(first, 1e-6)], device=device)
    torch.distributed.all_reduce(fitting, torch.distributed.ReduceOp.MIN)
    repeats = max(1, min(order["repeats"], int(fitting.item())))
    times = sorted(_once(torch, device, buffer) for _ in range(repeats))
    return float(2 * (world - 1) / world * count * 4 / max(times[len(times) // 4], 1e-9))


def _once(torch: Any, device: Any, buffer: Any) -> float:
    begin = time.perf_counter()
    torch.distributed.all_reduce(buffer)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin
