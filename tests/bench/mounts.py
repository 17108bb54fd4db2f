"""Mounts: how long one round over 200 takes of which 5 are dead, how many children it needs, and what it costs.

    PYTHONPATH=tests .venv/bin/python tests/bench/mounts.py

Needs root, tmpfs and bindfs; it mounts in a mount namespace of its own. Beside it the loop of a script: `timeout 2 stat -f` for each.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.table import Row, show
from mldebug.config.schema import Config
from mldebug.config.storage import StorageConfig
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.storage.filesystems.collector import FilesystemCollector
from shared.system.hung import hung_mount

MOUNTS, DEAD, ROUNDS = 200, 5, 5
INSIDE = "MLDEBUG_BENCH_MOUNTS"  # set where we are in a namespace of our own


def living(folder: Path) -> list[Path]:
    """Small memory filesystems, which go with the namespace."""
    found = [folder / f"alive{number}" for number in range(MOUNTS - DEAD)]
    for target in found:
        target.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", target], check=True)
    return found


def dead(stack: ExitStack, folder: Path) -> list[Path]:
    """FUSE filesystems whose server is stopped."""
    found = []
    for number in range(DEAD):
        place = folder / f"dead{number}"
        place.mkdir()
        mount = stack.enter_context(hung_mount(place))
        mount.hang()
        found.append(mount.target)
    return found


def children(pid: int) -> list[int]:
    """All that descend from it."""
    tasks = [one.read_text() for one in Path(f"/proc/{pid}/task").glob("*/children")]
    own = [int(word) for text in tasks for word in text.split()]
    return [*own, *(below for one in own for below in children(one))]


def script(paths: list[Path]) -> float:
    """Seconds of the loop of a script."""
    began = time.monotonic()
    for path in paths:
        command = ["timeout", "-s", "KILL", "2", "stat", "-f", path]
        subprocess.run(command, check=False, capture_output=True)
    return time.monotonic() - began


def rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """The first round meets the dead ones, later ones know them."""
    paths = [*living(folder), *dead(stack, folder)]
    config = Config(storage=StorageConfig(paths=tuple(map(str, paths))))
    servers = set(children(os.getpid()))
    tools = stack.enter_context(open_tools(config))
    desk, seconds = FilesystemCollector(tools.context, tools.filesystem_probe), []
    busy, most = time.process_time(), 0
    for number in range(ROUNDS):
        began = time.monotonic()
        desk.look(float(number), [])
        seconds.append(time.monotonic() - began)
        most = max(most, len(set(children(os.getpid())) - servers))
    busy = (time.process_time() - busy) / ROUNDS
    matching = [
        row for row in desk.status()["filesystems"] if str(row["mount"]).startswith(str(folder))
    ]
    stuck = sum(bool(row["stuck_seconds"]) for row in matching)
    answered = sum(row["used_ratio"] is not None for row in matching)
    right = (answered, stuck) == (MOUNTS - DEAD, DEAD)
    yield Row("mounts that answered, that are stuck", f"{answered}, {stuck}", f"{MOUNTS - DEAD}, {DEAD}", right)  # fmt: skip
    yield Row("first round", f"{seconds[0]:.2f} s", "≤ 5 s", seconds[0] <= 5)
    yield Row("later rounds", f"{max(seconds[1:]):.2f} s", "≤ 1 s", max(seconds[1:]) <= 1)
    yield Row("children", f"{most}", "≤ 6", most <= 6)
    yield Row("CPU of the agent's own process for a round", f"{busy * 1e3:.0f} ms")
    yield Row("`timeout 2 stat -f`, one by one", f"{script(paths):.2f} s")


def main() -> None:
    """Print the table."""
    if os.geteuid() != 0:
        sys.exit("this benchmark mounts filesystems: run it as root")
    if INSIDE not in os.environ:
        command = ["unshare", "--mount", sys.executable, *sys.argv]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        show(f"{MOUNTS} mounts of which {DEAD} are dead", rows(stack, folder))
        for target in folder.glob("alive*"):
            subprocess.run(["umount", "-l", target], check=False)


if __name__ == "__main__":
    main()
