"""Releasing the GPUs closes every handle of ours, so that a reset can run."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from gpu import world
from mldebug_agents.hardware.gpu.child import messages, server
from mldebug_agents.hardware.gpu.errors import GpusReleasedError
from mldebug_agents.hardware.gpu.reader import VendorReader
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import WORKERS, Spawner
from processes.harness import wait_for

REST = 3.0  # seconds


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """As the agent does it: a child reads, is released, and comes back."""
    with Spawner({**WORKERS, messages.NAME: server.serve}) as spawner:
        gpus = VendorReader(spawner, Host("/"))
        gpus.watch()
        held = ours()
        yield "held", held
        assert held, "the child holds no device file: nothing can be said of closing them"
        began = time.monotonic()
        gpus.release(REST)
        wait_for("the handles to be closed", lambda: not ours(), 30)
        yield "closed_after_ms", round(1e3 * (time.monotonic() - began), 1)
        yield "left", ours()
        yield "refused", refused(gpus)
        wait_for("the end of the release", lambda: not refused(gpus), REST + 20)
        yield "read_again_after_s", round(time.monotonic() - began, 2)
        gpus.close()
        wait_for("the handles to be closed again", lambda: not ours(), 30)


def ours() -> dict[int, list[str]]:
    """The NVIDIA device files that children of this process hold open, by pid."""
    found = {}
    for one in psutil.Process().children(recursive=True):
        try:
            held = world.device_files(one.pid)
        except OSError:  # it is gone
            continue
        if held:
            found[one.pid] = held
    return found


def refused(gpus: VendorReader) -> bool:
    """Is a read refused, because the GPUs are released?"""
    try:
        gpus.watch()
    except GpusReleasedError:
        return True
    return False
