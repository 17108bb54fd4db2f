"""How a job of gloo leaves without being aborted, or hanging, for it."""

import time

import torch.distributed as dist

REST = 0.5  # seconds


def leave() -> None:
    """End the groups, and let their threads come to rest.

    `destroy_process_group` leaves gloo's threads alive (seen in PyTorch 2.13). One of them that drops the last tensor of a
    finished collective takes the GIL for that; if Python is ending by then, CPython before 3.14 ends the thread, and C++ the process:
    "terminate called without an active exception", SIGABRT. If Python frees the last reference to the group by then (that of a
    DDP model, at the return of `main`), it waits for that thread with the GIL in its hand, for ever.
    """
    dist.destroy_process_group()
    time.sleep(REST)
