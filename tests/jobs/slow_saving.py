"""A job whose rank 0 saves for long through a mapping, sleeping in between, while the others wait.

usage: slow_saving.py FOLDER SECONDS: after some steps rank 0 makes FOLDER/step_20.pt longer for so long, a piece each half second,
then makes FOLDER/stopped and sleeps with the file open. It calls no write(2): only the file says that the save goes on.
"""

import mmap
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

PIECE = 1 << 16  # bytes


def train(steps: int) -> None:
    """Some steps that the log tells."""
    for step in range(steps):
        dist.all_reduce(torch.ones(8))
        if dist.get_rank() == 0:
            print(f"step {step} loss 0.5", flush=True)
        time.sleep(0.1)


def save(folder: Path, seconds: float) -> None:
    """A piece now and then, and no end."""
    until, size = time.monotonic() + seconds, 0
    with (folder / "step_20.pt").open("w+b", buffering=0) as file:
        while time.monotonic() < until:
            file.truncate(size + PIECE)
            with mmap.mmap(file.fileno(), PIECE, offset=size) as mapped:
                mapped.write(b"w" * PIECE)
            size += PIECE
            time.sleep(0.5)
        (folder / "stopped").touch()
        time.sleep(3600)


def main() -> None:
    """Train, and save."""
    dist.init_process_group("gloo")
    train(100)
    if dist.get_rank() == 0:
        save(Path(sys.argv[1]), float(sys.argv[2]))
    dist.barrier()


if __name__ == "__main__":
    main()
