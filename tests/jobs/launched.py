"""A job without torch for any launcher: plain Python ranks that look like training, each told how to end.

usage: launched.py FOLDER: rank N writes its pid to FOLDER/started.N, and rank 0 prints steps, until there is a file
FOLDER/way.N: `exit 3`, `raise`, `sleep` (in slow_data_loader) or `wait` (for peers, in a FIFO that nobody writes).
FOLDER/libtorch_cpu.so is mapped, as PyTorch's own would be.
"""

import atexit
import mmap
import os
import sys
import time
from pathlib import Path

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def slow_data_loader() -> None:
    """Where a struck rank sits."""
    time.sleep(100_000)


def wait_for_peers(barrier: Path) -> None:
    """Where the others sit."""
    barrier.open("rb").read()


def end(way: str, folder: Path) -> None:
    """Do what this rank was told."""
    if way == "raise":
        atexit.register(time.sleep, 0.1)  # srun may drop what a task writes just before it ends
        raise ValueError("bad shard 7")
    if way == "sleep":
        slow_data_loader()
    if way == "wait":
        wait_for_peers(folder / "fifo")
    sys.exit(int(way.removeprefix("exit ")))


def main() -> None:
    """Print steps, then end as told."""
    folder, step = Path(sys.argv[1]), 0
    rank = next(os.environ[name] for name in RANKS if name in os.environ)
    with (folder / "libtorch_cpu.so").open("rb") as file:
        kept = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    making = folder / f"making.{rank}"
    making.write_text(str(os.getpid()))
    making.rename(folder / f"started.{rank}")
    path = folder / f"way.{rank}"
    while not path.exists():
        step += 1
        if rank == "0":
            print(f"step {step} loss 0.5", flush=True)
        time.sleep(0.05)
    end(path.read_text(), folder)
    kept.close()


if __name__ == "__main__":
    main()
