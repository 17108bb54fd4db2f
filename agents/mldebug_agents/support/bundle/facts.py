"""Adds to a bundle: versions, reports, the agent's log and /proc files, and its stored state."""

import contextlib
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from mldebug import __version__
from mldebug.config.schema import Config
from mldebug.core.errors import AccessError, MldebugError
from mldebug.core.files import read_bytes
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.support.bundle.folder import BundleFolder
from mldebug_agents.support.bundle.layout import (
    AGENT_LOG,
    AGENT_PROC,
    MEMORY,
    REPORTS,
    VERSIONS,
)
from mldebug_agents.system.host import Host

DATABASE, TAILS = "agent.sqlite", ("", "-wal")
TRIES = 3
PACKAGES = (
    "click", "ClusterShell", "Jinja2", "msgspec", "nvidia-ml-py", "prometheus-client", "py-spy", "pystack", "PyYAML",
    "rich", "starlette", "uvicorn",
)  # fmt: skip
PROC = ("status", "stat", "limits", "cgroup", "io", "smaps_rollup", "oom_score_adj", "mountinfo")
MAX_REPORTS = 5
MAX_LOG = 2 << 20  # bytes of the agent's log
MAX_LOG_READ = 64 << 20  # a pipe cannot be read from its end
MAX_PROC = 256 << 10


def versions(folder: BundleFolder, driver: str) -> None:
    """Add the versions of mldebug, the packages it uses, kernel and GPU driver."""
    found = {"mldebug": __version__, "python": sys.version, "machine": platform.machine()}
    found |= {"kernel": platform.release(), "system": platform.version(), "gpu_driver": driver}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    folder.add_json(VERSIONS, found)


def reports(folder: BundleFolder, config: Config) -> None:
    """Add report.json of the last `MAX_REPORTS` incidents, unchanged."""
    archive = ReportStore(config.agent.state_dir)
    for entry in archive.list()[:MAX_REPORTS]:
        file = archive.folder / entry.id / "report.json"

        def gather(name: str = f"{REPORTS}/{entry.id}/report.json", file: Path = file) -> None:
            folder.add(name, read_bytes(file))

        folder.attempt(f"report {entry.id}", gather)


def agent_log(folder: BundleFolder, path: Path | None) -> None:
    """Add the end of the agent's log; where `path` is None, the note that it is missing."""
    if path is None:
        folder.miss("the agent's log", "nobody said where it is", "journalctl -u mldebug > FILE, and --log FILE")  # fmt: skip
        return
    with path.open("rb") as file:
        if file.seekable():
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOG_READ))
        folder.add(AGENT_LOG, file.read(MAX_LOG_READ), MAX_LOG)


def agent_proc(folder: BundleFolder, host: Host, pid: int) -> None:
    """Add files of the agent's /proc folder; what cannot be read is noted as missing. `pid` 0: no agent answered."""
    if not pid:
        folder.miss("the agent's process", "no agent answers here", "systemctl status mldebug")
    for name in PROC if pid else ():
        if text := host.text(pid, name):
            folder.add(f"{AGENT_PROC}/{name}", text.encode(), MAX_PROC)
        else:
            folder.miss(f"/proc/PID/{name} of the agent", "it cannot be read")


def memory(state_dir: Path) -> dict[str, msgspec.Raw]:
    """Return the agent's stored state by name (expected GPUs, baselines of runs), as JSON. Raises MldebugError."""
    path = state_dir / DATABASE
    if not path.exists():
        raise MldebugError(f"there is no {path}", "name the agent's config with --config")
    try:
        with TemporaryDirectory(prefix="mldebug-") as folder:
            return dict(_memos(_copy(path, Path(folder))))
    except sqlite3.Error as error:
        raise AccessError(f"{path}: {error}", "ask as the agent's user, or as root") from error


def _copy(path: Path, folder: Path) -> Path:
    """The agent keeps its database locked: a copy with its log, taken while neither changed, is as good."""
    for _ in range(TRIES):
        before = _state(path)
        for tail in TAILS:
            if (source := path.with_name(path.name + tail)).exists():
                shutil.copyfile(source, folder / (DATABASE + tail))
        if _state(path) == before:
            break
    return folder / DATABASE


def _state(path: Path) -> list[tuple[int, int]]:
    found = []
    for tail in TAILS:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"{path}{tail}")
            found.append((status.st_size, status.st_mtime_ns))
    return found


def _memos(path: Path) -> Iterator[tuple[str, msgspec.Raw]]:
    link = sqlite3.connect(path)
    try:
        for name, value in link.execute("SELECT name, CAST(told AS BLOB) FROM memos"):
            yield name, msgspec.Raw(value)
    finally:
        link.close()


def add_memory(folder: BundleFolder, found: dict[str, msgspec.Raw]) -> None:
    """Add the agent's stored state, as `memory` returns it, to the files of a bundle."""
    folder.add_json(MEMORY, found)
