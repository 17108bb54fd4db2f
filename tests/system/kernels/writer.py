"""A rank that writes checkpoints of 8 MiB until it cannot: writer.py FOLDER. Standard library only."""

import os
import sys
import time
import zipfile
from io import BytesIO
from pathlib import Path


def checkpoint(file: Path) -> None:
    """Write one, as torch.save lays it out."""
    whole = BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", os.urandom(8 << 20))
        archive.writestr("archive/version", "3\n")
    with file.open("wb", buffering=0) as out:
        for part in range(0, whole.tell(), 1 << 20):
            wanted = whole.getbuffer()[part : part + (1 << 20)]
            while wanted:
                wanted = wanted[out.write(wanted) :]
        os.fsync(out.fileno())


def main(folder: Path) -> None:
    """Step until a checkpoint cannot be written."""
    for step in range(1, 100):
        print(f"step {step} loss {2 + 3 / step:.4f}", flush=True)
        checkpoint(folder / f"step-{step}.pt")
        time.sleep(0.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
