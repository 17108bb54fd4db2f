"""Trees: what the first count of 1,000,000 files costs beside `du -s --inodes`, then a minute of 1,000 changes a second;
and what five directories of 2,040 folders each cost that are watched without configuration.

    PYTHONPATH=tests .venv/bin/python tests/bench/trees.py [FILES] [FOLDER]

FOLDER (default /dev/shm) is where the tree is made; it is removed afterwards. A change is the making or the removal of a file.
"""

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.table import Row, show
from mldebug_agents.storage.dir_sizes.learned import FOLDERS
from mldebug_agents.storage.dir_sizes.messages import DirSizeRequest
from mldebug_agents.storage.dir_sizes.updater import DirSizeUpdater

PER_FOLDER = 1000
RATE, SECONDS = 1000, 60.0
LEARNED = 5


def make(root: Path, files: int) -> list[Path]:
    """A tree of two levels; returns its folders."""
    folders = []
    for number in range(files // PER_FOLDER):
        folder = root / f"{number % 32}" / f"{number}"
        folder.mkdir(parents=True)
        folders.append(folder)
        for name in range(PER_FOLDER):
            os.mknod(folder / f"{name:06d}")
    return folders


def cpu_of_du(root: Path) -> float:
    """CPU seconds of `du -s --inodes`, after it has run once."""
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["du", "-s", "--inodes", root], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def resident() -> int:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024


def change(folders: list[Path], until: float) -> None:
    """In a process of its own: `RATE` changes a second all over the tree."""
    dice = random.Random(1)
    done, began = 0, time.monotonic()
    made: list[Path] = []
    while time.monotonic() < until:
        if made and dice.random() < 0.5:
            made.pop().unlink()
        else:
            made.append(dice.choice(folders) / f"new{done}")
            made[-1].write_bytes(b"x" * 4096)
        done += 1
        time.sleep(max(0.0, began + done / RATE - time.monotonic()))
    os._exit(0)


def keep(keeper: DirSizeUpdater, until: float) -> None:
    """As the child does."""
    while time.monotonic() < until:
        keeper.tick(0.25)
        time.sleep(min(max(0.1, keeper.due(time.monotonic())), 0.5))


def learned(root: Path) -> list[Row]:
    """Five directories near the most that each may have, as runs that write to them would have them watched."""
    for number in range(LEARNED * (FOLDERS - 1)):
        tree, folder = divmod(number, FOLDERS - 1)
        place = root / f"{tree}/{folder % 40}/{folder}"
        place.mkdir(parents=True)
        for name in range(8):
            os.mknod(place / f"{name}")
    before, began = resident(), time.process_time()
    keepers = [DirSizeUpdater(DirSizeRequest(path=str(root / f"{tree}"))) for tree in range(LEARNED)]  # fmt: skip
    while any(one.state().inodes is None for one in keepers):
        for one in keepers:
            one.tick(1.0)
    counted = f"{time.process_time() - began:.2f} s, {resident() - before} MiB"
    began, until = time.process_time(), time.monotonic() + 30
    while time.monotonic() < until:
        for one in keepers:
            one.tick(0.25)
        time.sleep(min(max(0.1, min(one.due(time.monotonic()) for one in keepers)), 0.5))
    folders = sum(one.state().folders for one in keepers)
    idle = f"{(time.process_time() - began) / 30:.3%} of a core"
    return [Row(f"trees: first count of {folders} learned folders, CPU", counted), Row("trees: those, idle", idle)]  # fmt: skip


def main(files: int, place: str) -> None:
    """Print each figure."""
    root, rows = Path(tempfile.mkdtemp(prefix="mldebug-trees-", dir=place)), []
    try:
        folders = make(root, files)
        rows.append(Row("trees: `du -s --inodes`, CPU", f"{cpu_of_du(root):.2f} s"))
        before, began = resident(), time.process_time()
        keeper = DirSizeUpdater(DirSizeRequest(path=str(root)))
        while keeper.state().inodes is None:
            keeper.tick(1.0)
        counted = f"{time.process_time() - began:.2f} s, {resident() - before} MiB"
        rows.append(Row(f"trees: first count of {files} files, CPU", counted))
        began, until = time.process_time(), time.monotonic() + 20
        keep(keeper, until)
        rows.append(Row("trees: idle", f"{(time.process_time() - began) / 20:.2%} of a core"))
        until = time.monotonic() + SECONDS
        child = os.fork()
        if child == 0:
            change(folders, until)
        began = time.process_time()
        keep(keeper, until)
        used = (time.process_time() - began) / SECONDS
        os.waitpid(child, 0)
        kept = f"{used:.2%} of a core, {resident() - before} MiB"
        rows.append(Row(f"trees: {RATE} changes a second", kept))
        keep(keeper, time.monotonic() + 8)
        done = subprocess.run(["du", "-s", "--inodes", root], check=True, capture_output=True)
        inodes, right = keeper.state().inodes, int(done.stdout.split()[0])
        rows.append(Row("trees: inodes afterwards", f"{inodes}", f"{right} (du)", inodes == right))
        rows.append(Row("trees: overflows", f"{keeper.state().overflows}"))
        rows += learned(root / "learned")
    finally:
        shutil.rmtree(root)
    show(f"{files} files below {place}", rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, (sys.argv[2:] or ["/dev/shm"])[0])
