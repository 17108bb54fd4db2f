"""What scripts do that are the first process of a kernel of their own: mounts, modules, programs of a user. Standard library only."""

import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER, MODULES = Path(sys.argv[1]), Path(sys.argv[2])
LOADS_A_MODULE, HALTS = 313, 0x4321FEDC  # finit_module of x86-64; LINUX_REBOOT_CMD_POWER_OFF
LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534
MLDEBUG = [sys.executable, "-m", "mldebug"]


def main(find: Callable[[], Any]) -> None:
    """Set the machine up, write what `find` returns as JSON to FOLDER/found.json, and halt."""
    try:
        os.environ.update(
            PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            HOME="/root", LANG="C.UTF-8", PYTHONDONTWRITEBYTECODE="1",
        )  # fmt: skip
        for kind, place in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run"), ("tmpfs", "/mnt")):  # fmt: skip
            run("mount", "-t", kind, kind, place)
        Path("/dev/shm").mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "size=1100m", "none", "/dev/shm")
        run("ip", "link", "set", "lo", "up")
        LIBC.sethostname(b"guest", 5)
        found = find()
        (FOLDER / "found.json").write_text(json.dumps(found))
    except BaseException:  # noqa: BLE001 - the first process may not end
        traceback.print_exc()
    finally:
        os.sync()
        LIBC.reboot(HALTS)


def as_user(user: int, argv: Sequence[str]) -> list[str]:
    """The words that run a program as this user, who may also read what lies below root's home: a Python may be there."""
    if not user:
        return list(argv)
    reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *reads, *argv]


def run(
    *argv: str, user: int = 0, fails: bool = False, seconds: float = 120.0
) -> "subprocess.CompletedProcess[str]":
    """Run a program, as this user."""
    done = subprocess.run(as_user(user, argv), check=False, capture_output=True, text=True, timeout=seconds, cwd="/")  # fmt: skip
    print(f"{time.monotonic():.0f}", *argv, "->", done.returncode, done.stderr[-300:], flush=True)
    assert fails or done.returncode == 0, (argv, done.stdout, done.stderr)
    return done


def load(*names: str) -> None:
    """Load these modules and all that they need."""
    lines = (line.split(":") for line in (MODULES / "modules.dep").read_text().splitlines())
    needs = {Path(path).stem: (path, more.split()) for path, more in lines}

    def one(name: str) -> None:
        path, more = needs[name]
        for other in reversed(more):
            one(Path(other).stem)
        with (MODULES / path).open("rb") as file:
            LIBC.syscall(LOADS_A_MODULE, file.fileno(), b"", 0)  # what is there already is refused

    for name in names:
        one(name)


def mount(device: str, name: str, *options: str) -> Path:
    """Mount a disk at /mnt/NAME, open to everybody."""
    place = Path("/mnt") / name
    place.mkdir()
    run("mount", *options, device, str(place))
    place.chmod(0o777)
    return place
