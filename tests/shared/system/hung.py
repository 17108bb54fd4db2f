"""Things that hang on purpose, and let go again: shared by the tests of what may wedge."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from shared.system.patience import PATIENCE


def wait_until(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Poll a condition; fail the test if it does not come true in time."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not true():
        assert time.monotonic() < deadline, "the expected event did not come"
        time.sleep(0.005)


def state(pid: int) -> str:
    """Return the state letter of a process, "" once it is gone or a zombie."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return "" if letter in "ZX" else letter


class HungMount:
    """A FUSE mirror of `source` at `target`, whose server can be stopped: every access then hangs."""

    def __init__(self, source: Path, target: Path, server: int) -> None:
        self.source = source
        self.target = target
        self.server = server

    def hang(self) -> None:
        """Stop the server."""
        os.kill(self.server, signal.SIGSTOP)
        wait_until(lambda: state(self.server) == "T")

    def recover(self) -> None:
        """Let the server go on."""
        os.kill(self.server, signal.SIGCONT)


def missing(reason: str) -> NoReturn:
    """A part of the test bed is not there: a skip for a person, a failure in CI, which installs all of them."""
    if os.environ.get("CI"):
        pytest.fail(f"CI lacks a part of the test bed: {reason}")
    pytest.skip(reason)


@contextmanager
def hung_mount(folder: Path) -> Iterator[HungMount]:
    """Mount a bindfs mirror below `folder`; skips the test where FUSE is not to be had."""
    if not shutil.which("bindfs") or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        missing("needs bindfs and /dev/fuse")
    source, target = folder / "source", folder / "mount"
    source.mkdir()
    target.mkdir()
    options = [
        "--no-allow-other",
        "-o",
        "attr_timeout=0,entry_timeout=0",
    ]  # or the kernel answers from its cache
    server = subprocess.Popen(["bindfs", "-f", *options, str(source), str(target)])
    try:
        wait_until(lambda: os.path.ismount(target) or server.poll() is not None)
        if server.poll() is not None:
            missing("this user cannot mount FUSE here")
        yield HungMount(source, target, server.pid)
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGCONT)
            server.kill()
        server.wait()
        tool = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount", "-uz"]
        subprocess.run([*tool, str(target)], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def frozen_disk(folder: Path) -> Iterator[Path]:
    """Yield a mounted, frozen file system: a writer there is in state D and survives SIGKILL until it thaws."""
    if os.geteuid() != 0 or not shutil.which("fsfreeze") or not shutil.which("mkfs.ext4"):
        missing("needs root, fsfreeze and mkfs.ext4")
    image, target = folder / "image", folder / "disk"
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(target)], check=False).returncode:
        missing("no loop devices here")
    try:
        subprocess.run(["fsfreeze", "-f", str(target)], check=True)
        yield target
    finally:
        subprocess.run(["fsfreeze", "-u", str(target)], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "-l", str(target)], check=False)
