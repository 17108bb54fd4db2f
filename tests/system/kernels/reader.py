"""A rank that reads a file past the page cache, once for each line of its input: reader.py FILE. Standard library only."""

import mmap
import os
import sys
import time
from pathlib import Path

BLOCK, BLOCKS = 1 << 16, 25


def main(path: Path) -> None:
    """Open the file anew, read so many blocks of it, and say how many milliseconds each took."""
    buffer, first = mmap.mmap(-1, BLOCK), os.open(path, os.O_RDONLY)
    blocks = os.fstat(first).st_size // BLOCK
    for number, _ in enumerate(sys.stdin):
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        begun = time.monotonic()
        for block in range(BLOCKS):
            os.preadv(file, [buffer], (number * BLOCKS + block) % blocks * BLOCK)
        print((time.monotonic() - begun) * 1000 / BLOCKS, flush=True)
        os.close(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
