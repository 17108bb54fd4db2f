"""A light rank that says nothing in its log: it maps libtorch, and has what looks like PyTorch to step with.

usage: beating.py LIBRARY: step until there is a file `hang` beside the library, then sleep for ever.
"""

import mmap
import os
import sys
import time
from pathlib import Path

PAUSE = float(os.environ.get("PAUSE", "0.1"))


def slow_data_loader() -> None:
    """Where all of them end."""
    time.sleep(100_000)


def main() -> None:
    """Step, then hang."""
    import torch

    library, optimizer = Path(sys.argv[1]), torch.optim.Optimizer()  # type: ignore[call-arg]
    with library.open("rb") as file:
        kept = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    while not (library.parent / "hang").exists():
        optimizer.step()
        time.sleep(PAUSE)
    slow_data_loader()
    kept.close()


if __name__ == "__main__":
    main()
