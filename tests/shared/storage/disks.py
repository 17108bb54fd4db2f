"""Small real disks of ext4 and XFS on loop devices, that go away by themselves even if the test is killed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
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
    with _mounted(target, "-o", options, str(image)):
        yield target


@contextmanager
def memory_disk(folder: Path, options: str) -> Iterator[Path]:
    """A mounted tmpfs with these options: `size=40m`, `nr_inodes=800`."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts disks")
    target = folder / "memory"
    target.mkdir()
    with _mounted(target, "-t", "tmpfs", "-o", options, "none"):
        yield target


@contextmanager
def _mounted(target: Path, *words: str) -> Iterator[None]:
    """A mount, which a guard that waits for our end thaws and unmounts."""
    command = ["mount", *words, str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        missing(f"{' '.join(command)}: {done.stderr.strip()}")
    guard = subprocess.Popen(
        [sys.executable, "-c", GUARD, str(target)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
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


@contextmanager
def slow_disk(folder: Path) -> Iterator[tuple[Path, "subprocess.Popen[bytes]"]]:
    """An ext4 on a loop device whose image lies on a FUSE mount: to stop its daemon delays the disk."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts disks")
    if not shutil.which("bindfs") or not shutil.which("mkfs.ext4"):
        missing("needs bindfs and mkfs.ext4")
    source, between, disk = (folder / name for name in ("source", "between", "disk"))
    for one in (source, between, disk):
        one.mkdir()
    with (source / "image").open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(source / "image")], check=True)
    daemon = subprocess.Popen(["bindfs", "-f", "-o", "direct_io", str(source), str(between)])
    # else a busy machine makes the disk slow before we do
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(daemon.pid, os.SCHED_RR, os.sched_param(1))
    try:
        while not between.is_mount():
            assert daemon.poll() is None
        subprocess.run(["mount", "-o", "loop", str(between / "image"), str(disk)], check=True)
        yield disk, daemon
    finally:
        daemon.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "-l", str(disk)], check=False)
        subprocess.run(["umount", "-l", str(between)], check=False)
        daemon.terminate()
        daemon.wait()


@contextmanager
def delayed(daemon: int) -> Iterator[None]:
    """Delay whatever the daemon of a FUSE mount serves (`daemon`: its pid): it runs for 6 ms in every 60 ms."""
    over = threading.Event()

    def delay() -> None:
        while not over.is_set():
            os.kill(daemon, signal.SIGSTOP)
            over.wait(0.054)
            os.kill(daemon, signal.SIGCONT)
            over.wait(0.006)

    thread = threading.Thread(target=delay)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.kill(daemon, signal.SIGCONT)
