"""Whether a process may be killed: not while it is inside a GPU driver.

The helper process calls this, so nothing here may wait.
"""

import contextlib
import os
from pathlib import Path

from mldebug_agents.system.process.syscalls import syscall_name

MACHINE = os.uname().machine
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")


def inside_gpu_driver(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a GPU open and one of its threads is in state D or in a system call on the GPU.

    Killing it then has frozen GPUs.
    """
    held = {link.name for link in _entries(proc / str(pid) / "fd") if _holds_gpu(link)}
    tasks = _entries(proc / str(pid) / "task") if held else []
    return any(_state(task) == "D" or _asks(task) in held for task in tasks)


def _entries(folder: Path) -> list[Path]:
    """None of a process that is gone; `Path.glob` raises where it goes just then."""
    with contextlib.suppress(OSError):
        return [folder / name for name in os.listdir(folder)]
    return []


def _state(task: Path) -> str:
    with contextlib.suppress(OSError):  # the thread ended meanwhile
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return ""


def _asks(task: Path) -> str:
    """The number of the file on which it waits in an ioctl, in whatever state; "" where it does not."""
    with contextlib.suppress(OSError, ValueError):  # "running", or not for us
        number, file, *_ = (task / "syscall").read_text().split()
        if syscall_name(int(number), MACHINE) == "ioctl":
            return str(int(file, 16))
    return ""


def _holds_gpu(link: Path) -> bool:
    with contextlib.suppress(OSError):  # it was closed meanwhile
        return os.readlink(link).startswith(_DEVICES)
    return False
