"""Small real disks of ext4 and XFS on loop devices, that go away by themselves even if the test is killed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.system.hung import missing

SIZES = {"ext4": 64 << 20, "xfs": 320 << 20}  # xfs has no smaller ones
GUARD = """
import subprocess, sys
sys.stdin.read()
for command in (["fsfreeze", "-u", sys.argv[1]], ["umount", "-l", sys.argv[1]]):
    subprocess.call(command, stderr=subprocess.DEVNULL)
"""


@contextmanager
def disk(folder: Path, kind: str, size: int = 0, options: str = "loop") -> Iterator[Path]:
    """A mounted disk; its loop device goes with the mount. A guard that waits for our end thaws and unmounts it."""
    tool = shutil.which(f"mkfs.{kind}")
    if os.geteuid() != 0:
        pytest.skip("only root mounts disks")
    if tool is None or not shutil.which("fsfreeze"):
        missing(f"needs fsfreeze and mkfs.{kind}")
    image, target = folder / "image", folder / "disk"
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(size or SIZES[kind])
    subprocess.run([str(tool), "-q", str(image)], check=True)
    command = ["mount", "-o", options, str(image), str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        missing(f"no loop device can be mounted as {kind} here: {done.stderr.strip()}")
    guard = subprocess.Popen(
        [sys.executable, "-c", GUARD, str(target)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield target
    finally:
        guard.communicate()


@contextmanager
def frozen(target: Path) -> Iterator[None]:
    """Writers there wait until the end of the block; the guard of `disk` thaws it if we are killed."""
    subprocess.run(["fsfreeze", "-f", str(target)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(target)], check=True)
