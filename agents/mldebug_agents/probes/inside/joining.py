"""How a rank of a probe joins the others."""

from __future__ import annotations

import datetime
import os
import socket
from importlib import import_module
from typing import Any

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def check_interfaces() -> None:
    """Raise ValueError for a network interface that this host does not have: back ends say so only in riddles."""
    here = [name for _, name in socket.if_nameindex()]
    for variable in INTERFACES:
        wanted = os.environ.get(variable, "")
        if not wanted or wanted[0] == "^":
            continue
        prefixes = [one.lstrip("=").split(":")[0] for one in wanted.split(",")]
        if not any(name.startswith(one) for one in prefixes for name in here):
            known = ", ".join(sorted(here))
            raise ValueError(
                f"{variable}={wanted}: {socket.gethostname()} has no such interface (it has {known})"
            )


def join(order: dict[str, Any]) -> tuple[Any, Any]:
    """Make the process group; returns torch and the device of this rank."""
    check_interfaces()
    torch = import_module("torch")
    device = torch.device("cpu")
    if order["device"] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=order["timeout"])
    backend = "nccl" if order["device"] == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, timeout=timeout)
    return torch, device


def leave(torch: Any) -> None:
    """Take the process group apart."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
