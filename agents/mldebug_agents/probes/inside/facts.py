"""What this Python has: torch, its backends, its GPUs. No GPU context is made."""

from __future__ import annotations

import fcntl
import glob
import socket
import struct
import subprocess
import sys
from importlib import import_module
from typing import Any

from .ranks import beating, emit, keep_stdout
from .strangers import SMI, ranks_here

SIOCGIFADDR = 0x8915


def main(order: dict[str, Any]) -> None:
    """Print the event `facts`: versions of Python, PyTorch, CUDA and NCCL, number of GPUs, back ends, address and RDMA ports of this host."""
    keep_stdout()
    try:
        with beating():
            torch = import_module("torch")
    except Exception as error:  # a torch of another CUDA or glibc raises anything
        emit("failed", rank=-1, kind=type(error).__name__, error=str(error)[:2000])
        return
    dist = torch.distributed
    built = torch.version.cuda or torch.version.hip
    emit(
        "facts",
        python=sys.version.split()[0],
        torch=str(torch.__version__),
        cuda=torch.version.cuda or "",
        hip=torch.version.hip or "",
        gpus=torch.cuda.device_count() if built else 0,  # by NVML: makes no context
        nccl=".".join(map(str, torch.cuda.nccl.version()))
        if built and dist.is_nccl_available()
        else "",
        gloo=dist.is_available() and dist.is_gloo_available(),
        address=address(order.get("interface", "")),
        port=free_port(),
        compute=compute() if built else [],
        training=ranks_here(),
        gigabits=gigabits(),
    )


def address(interface: str) -> str:
    """The IPv4 address of that network interface, else the one that this host uses to reach others; "" where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            if interface:
                packed = struct.pack("256s", interface.encode()[:15])
                return socket.inet_ntoa(fcntl.ioctl(one.fileno(), SIOCGIFADDR, packed)[20:24])
            one.connect(("192.0.2.1", 9))  # sends nothing
            return str(one.getsockname()[0])
        except OSError:
            return ""


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def gigabits(root: str = "/sys/class/infiniband") -> list[float]:
    """Gb/s of each active RDMA port of this node, as the kernel tells them."""
    found = []
    for folder in sorted(glob.glob(f"{root}/*/ports/*"))[:256]:
        try:
            with open(f"{folder}/state") as state, open(f"{folder}/rate") as rate:
                if "ACTIVE" in state.read(100):
                    found.append(float(rate.read(100).split()[0]))
        except (OSError, ValueError, IndexError):
            continue  # this adapter does not tell it
    return found


def compute() -> list[int] | None:
    """Pids of processes that compute on this node's GPUs; None where nvidia-smi does not tell."""
    try:
        answer = subprocess.run(SMI, capture_output=True, text=True, timeout=30, check=True)
        return [int(line) for line in answer.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
