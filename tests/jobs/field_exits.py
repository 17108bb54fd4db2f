"""Jobs on gloo that end because of one rank, in ways in which each other rank speaks as well: field_exits.py EVENTS WAY.

They train until EVENTS/go exists; rank 2 is to blame, in `leaves_with_0` rank 3. `late_start` has no group yet.
"""

import datetime
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from events import put

EVENTS = Path(sys.argv[1])
PAUSE = 0.2
AGES = 3600.0


def sync() -> None:
    dist.all_reduce(torch.ones(64))


def detail_mismatch(rank: int) -> None:
    """Rank 2 broadcasts while the others reduce; TORCH_DISTRIBUTED_DEBUG=DETAIL lets each accuse another."""
    if rank == 2:
        dist.broadcast(torch.ones(64), 0)
    else:
        sync()


def monitored_barrier(rank: int) -> None:
    """Rank 2 never comes, and rank 0's words name it."""
    if rank == 2:
        time.sleep(AGES)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))


def other_size(rank: int) -> None:
    """Rank 2 gathers another size; gloo aborts whoever gets it."""
    size = 4096 if rank == 2 else 64
    dist.all_gather([torch.empty(size) for _ in range(dist.get_world_size())], torch.ones(size))
    sync()


def error_behind_bar(rank: int) -> None:
    """Rank 2 raises while rank 0 draws a bar into the same line."""
    if rank == 2:
        raise ValueError("shard 7: bad magic")
    sync()


def leaves_with_0(rank: int) -> None:
    """Rank 3 leaves the loop, and ends with 0."""
    if rank == 3:
        sys.exit(0)
    sync()
    sync()


def late_store(rank: int) -> None:
    """Ranks 1 to 3 wait for a key of the store that rank 0 never sets, and give up; rank 0 waits for them."""
    if rank:
        store = dist.distributed_c10d._get_default_store()
        store.set_timeout(datetime.timedelta(seconds=5))
        store.get("checkpoint_written")
    sync()


def no_space(rank: int) -> None:
    """Rank 2 cannot write its checkpoint: the disk at NO_SPACE is full already."""
    if rank == 2:
        Path(os.environ["NO_SPACE"], "step-17.pt").write_bytes(bytes(1 << 20))
    sync()


WAYS = {one.__name__: one for one in (detail_mismatch, monitored_barrier, other_size, error_behind_bar, leaves_with_0, late_store, no_space)}  # fmt: skip


def log(rank: int, step: int) -> None:
    if rank == 0 and sys.argv[2] == "error_behind_bar":
        sys.stderr.write(f"\rEpoch 0: {step / 2:3.0f}%|####      | {step}/200 [00:{step:02d}<01:00,  3.3it/s, loss=2.6]")  # fmt: skip
        sys.stderr.flush()
    elif rank == 0:
        print(f"step {step} loss 2.5", flush=True)


def fill() -> None:
    """Fill the disk with a file that stays open until this process ends."""
    held = os.open(Path(os.environ["NO_SPACE"], "old.pt"), os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while os.write(held, bytes(1 << 16)):
            pass


def late_start(rank: int) -> None:
    """Rank 2 never comes to the group, and the others give up waiting at its store."""
    if rank == 2:
        time.sleep(AGES)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))


def wait_for_go(rank: int) -> None:
    """Prepare something before there is a group."""
    put(EVENTS / f"started.{rank}", str(os.getpid()))
    while not (EVENTS / "go").exists():
        time.sleep(PAUSE)


def train() -> None:
    """Join the others, train until it may end, and end in the way that is told."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    put(EVENTS / f"started.{rank}", str(os.getpid()))
    step = 0
    while True:
        agreed = torch.tensor([float((EVENTS / "go").exists())])
        dist.all_reduce(agreed, dist.ReduceOp.MIN)
        log(rank, step)
        if agreed.item():
            break
        step += 1
        time.sleep(PAUSE)
    WAYS[sys.argv[2]](rank)
    dist.barrier()


def main() -> None:
    rank = int(os.environ["RANK"])
    if os.environ.get("NO_SPACE") and rank == 2:
        fill()
    if sys.argv[2] == "late_start":
        wait_for_go(rank)
        late_start(rank)
    else:
        train()


if __name__ == "__main__":
    main()
