"""A data-parallel training on gloo whose rank 0 writes checkpoints, and keeps all of them, until no space is left: fills_disk.py EVENTS [--save] FOLDER MIB [KIND].

Each checkpoint holds MIB MiB, as one file or, with the KIND `folder`, as a folder with a model and an optimizer; with the KIND `plain` Python itself
writes the file, whose error has no path; with 0 it is many empty files, so that the inodes are used up first.
"""

import io
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from events import put

WORDS = [one for one in sys.argv[1:] if one != "--save"]
EVENTS, FOLDER, MIB = Path(WORDS[0]), Path(WORDS[1]), int(WORDS[2])
KIND = WORDS[3] if len(WORDS) > 3 else "file"
EVERY = 10 if KIND == "file" else 40  # steps
FILES = 400


def checkpoint(step: int) -> None:
    """Write one, without a temporary name."""
    if KIND == "folder":
        folder = FOLDER / f"checkpoint-{step}"
        folder.mkdir()
        for name in ("model", "optimizer"):
            torch.save({name: torch.ones(MIB << 17), "step": step}, folder / f"{name}.pt")
        return
    if KIND == "plain":
        whole = io.BytesIO()
        torch.save({"model": torch.ones(MIB << 18), "step": step}, whole)
        with (FOLDER / f"step-{step}.pt").open("wb", buffering=0) as file:
            for part in range(0, whole.tell(), 1 << 20):
                file.write(whole.getbuffer()[part : part + (1 << 20)])
        return
    if MIB:
        torch.save({"model": torch.ones(MIB << 18), "step": step}, FOLDER / f"step-{step}.pt")
        return
    folder = FOLDER / f"checkpoint-{step}"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"part-{number}.bin").touch()


def main() -> None:
    """Train until it fails."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    FOLDER.mkdir(exist_ok=True)
    metrics = (FOLDER / f"metrics-{rank}.jsonl").open(
        "a"
    )  # open all the while, as trainers have theirs
    print("{}", file=metrics, flush=True)
    put(EVENTS / f"started.{rank}", str(os.getpid()))
    for step in range(1, 100_000):
        dist.all_reduce(torch.ones(64))
        if rank == 0:
            print(f"step {step} loss 2.5", flush=True)
            if step % EVERY == 0:
                checkpoint(step)
        time.sleep(0.15)


if __name__ == "__main__":
    main()
