"""What this Python has: torch, its back ends, its GPUs. No GPU context is made."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from .ranks import keep_stdout, say


def main(order: dict[str, Any]) -> None:
    """Say one `facts` event."""
    keep_stdout()
    try:
        torch = import_module("torch")
    except Exception as error:  # a torch of another CUDA or glibc raises anything
        say("failed", rank=-1, kind=type(error).__name__, error=str(error)[:2000])
        return
    dist = torch.distributed
    built = torch.version.cuda or torch.version.hip
    say(
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
    )
