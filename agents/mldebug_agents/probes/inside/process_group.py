"""How a rank of a probe joins and leaves the process group."""

from __future__ import annotations

import datetime
import os
import socket
from importlib import import_module
from typing import Any

INTERFACES = {"cuda": "NCCL_SOCKET_IFNAME", "cpu": "GLOO_SOCKET_IFNAME"}


def check_interfaces(device: str) -> None:
    """Raise ValueError where NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME on CPUs) names an interface that this host lacks; the
    backends' own errors are unclear.
    """
    variable = INTERFACES[device]
    wanted = os.environ.get(variable, "")
    here = sorted(name for _, name in socket.if_nameindex())
    missing = (nccl_lacks if device == "cuda" else gloo_lacks)(wanted, here)
    if wanted and missing:
        problem = (
            f"{socket.gethostname()} has no such interface: {missing} (it has {', '.join(here)})"
        )
        raise ValueError(f"{variable}={wanted}: {problem}")


def gloo_lacks(wanted: str, here: list[str]) -> str:
    """Return those of the interface names in `wanted` (comma-separated) that this host lacks, comma-separated. `here`: the
    names of its interfaces.
    """
    return ", ".join(one for one in wanted.split(",") if one not in here)


def nccl_lacks(wanted: str, here: list[str]) -> str:
    """Return `wanted` itself where none of this host's interfaces (`here`) fits it, else "". As in NCCL_SOCKET_IFNAME, it
    lists prefixes; after `=` whole names, after `^` names to be left out.
    """
    words = wanted.lstrip("^").lstrip("=")
    whole, others = wanted.lstrip("^").startswith("="), wanted.startswith("^")
    names = tuple(one.split(":")[0] for one in words.split(","))
    fits = [name for name in here if (name in names if whole else name.startswith(names))]
    usable = len(fits) < len(here) if others else bool(fits)
    return "" if usable else wanted


def join(order: dict[str, Any]) -> tuple[Any, Any]:
    """Join the process group that the environment describes. Returns torch and the device of this rank. Raises ValueError for a
    missing network interface, and what torch raises.
    """
    check_interfaces(order["device"])
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
    """Wait for all ranks and destroy the process group."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
