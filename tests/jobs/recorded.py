"""A gloo job whose ranks write what their Flight Recorders hold, and end: FAULT FOLDER.

`late`: rank 2 leaves the last call out. `other`: rank 1 makes another one. `none`: nothing is wrong.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

c10d: Any = _distributed_c10d  # its stubs leave the recorder out


def main() -> None:
    """Train a little, get stuck, and tell."""
    fault, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    rank, values = dist.get_rank(), torch.ones(16)
    pair = dist.new_group([0, 1])
    for _ in range(5):
        dist.all_reduce(values)
    if rank < 2:
        dist.all_reduce(values, group=pair)
    store = dist.distributed_c10d._get_default_store()
    _last(fault, rank, values)
    if fault == "none":
        _settle()
    (folder / "json" / f"trace_{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    (folder / "pickle" / f"node-{rank % 2}_trace_{rank}").write_bytes(c10d._dump_fr_trace())
    store.set(f"done{rank}", "1")
    store.wait([f"done{one}" for one in range(dist.get_world_size())])
    if rank == 0:
        time.sleep(1)  # it holds the store that the others read last
    os._exit(0)


def _settle() -> None:
    """Until the recorder has noted the end of every call, which it does a moment after the call has returned."""
    last = time.monotonic() + 60
    while time.monotonic() < last:
        entries = json.loads(c10d._dump_fr_trace_json())["entries"]
        if all(one["retired"] for one in entries):
            return
        time.sleep(0.05)


def _last(fault: str, rank: int, values: torch.Tensor) -> None:
    if fault == "other" and rank == 1:
        dist.broadcast(values, 0, async_op=True)
    elif fault == "other" or (fault == "late" and rank != 2):
        dist.all_reduce(values, async_op=True)


if __name__ == "__main__":
    main()
