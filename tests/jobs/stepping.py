"""A run that steps until it is told to end: plain Python ranks that look like training, with a log of steps.

usage: stepping.py SITE_PACKAGES [OPTION...]: print steps until there is a file $STOP_FILE, then end well.
"""

import mmap
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Print steps."""
    library, step = Path(sys.argv[1]) / "torch/lib/libtorch_cpu.so", 0
    with library.open("rb") as file:
        kept = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    while not Path(os.environ["STOP_FILE"]).exists():
        step += 1
        if os.environ["RANK"] == "0":
            print(f"step {step} loss {2 + 3 / step:.4f}", flush=True)
        time.sleep(0.1)
    kept.close()


if __name__ == "__main__":
    main()
