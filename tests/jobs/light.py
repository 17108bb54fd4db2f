"""A job that costs nothing: plain Python ranks that look like training (environment, libtorch in maps, steps in the log).

usage: light.py LIBRARY: print steps until there is a file `hang` beside the library, then wait for ever: rank 1 in
slow_data_loader, the others in wait_for_peers.
"""

import mmap
import os
import sys
import time
from pathlib import Path


def slow_data_loader() -> None:
    """Where the struck rank sits."""
    time.sleep(100_000)


def wait_for_peers(barrier: Path) -> None:
    """Where the others sit: a FIFO that nobody writes."""
    barrier.open("rb").read()


def main() -> None:
    """Print steps, then hang."""
    library, step = Path(sys.argv[1]), 0
    with library.open("rb") as file:
        kept = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    while not (library.parent / "hang").exists():
        step += 1
        if os.environ["RANK"] == "0":
            print(f"step {step} loss 0.5", flush=True)
        time.sleep(0.02)
    slow_data_loader() if os.environ["RANK"] == "1" else wait_for_peers(library.parent / "fifo")
    kept.close()


if __name__ == "__main__":
    main()
