"""A process that its cgroup has frozen: the kernel's own freezers where a cgroup may be made, else a host root of files."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.core.model import ThreadState
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.details import frozen_by, may_be_frozen
from shared.system.patience import PATIENCE

NAME = "mldebug-test"


def texts(files: dict[str, str]) -> object:
    return lambda path: files.get(path, "")


@pytest.mark.parametrize(
    ("cgroups", "files", "found"),
    [
        ("0::/docker/4f2a\n", {"/sys/fs/cgroup/docker/4f2a/cgroup.events": "populated 1\nfrozen 1\n"}, "/docker/4f2a"),
        ("0::/docker/4f2a\n", {"/sys/fs/cgroup/docker/4f2a/cgroup.events": "populated 1\nfrozen 0\n"}, ""),
        ("0::/a\n", {"/sys/fs/cgroup/unified/a/cgroup.events": "frozen 1\n"}, "/a"),
        ("6:freezer:/pod/x\n0::/\n", {"/sys/fs/cgroup/freezer/pod/x/freezer.state": "FROZEN\n"}, "/pod/x"),
        ("6:freezer:/pod/x\n0::/\n", {"/sys/fs/cgroup/freezer/pod/x/freezer.state": "FREEZING\n"}, ""),
        ("6:memory:/pod/x\n", {"/sys/fs/cgroup/freezer/pod/x/freezer.state": "FROZEN\n"}, ""),
        ("0::/../other\n", {"/sys/fs/cgroup/../other/cgroup.events": "frozen 1\n"}, ""),
        ("0::/\n", {"/sys/fs/cgroup/cgroup.events": "frozen 1\n"}, ""),
        ("", {}, ""),
    ],
)  # fmt: skip
def test_the_freezer_is_read(cgroups: str, files: dict[str, str], found: str) -> None:
    assert frozen_by(cgroups, texts(files)) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "wchan", "looked_at"),
    [
        ("S", "get_signal", True),
        ("S", "do_freezer_trap", True),
        ("D", "hrtimer_nanosleep", True),  # v1 leaves it where it slept
        ("S", "", True),  # not readable
        ("S", "futex_do_wait", False),
        ("R", "", False),
    ],
)
def test_only_who_may_be_frozen_costs_a_look(state: str, wchan: str, looked_at: bool) -> None:
    assert may_be_frozen(ThreadState(tid=1, state=state, wchan=wchan)) is looked_at


@pytest.fixture(params=["freezer", "unified", ""], ids=["v1", "v2 beside v1", "v2"])
def cgroup(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A real cgroup with a freezer; removed with the test."""
    path = Path("/sys/fs/cgroup", request.param, f"{NAME}-{os.getpid()}")
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made at {path.parent}: {error.strerror}")
    files = {file.name for file in path.iterdir()}
    if not files & {"cgroup.freeze", "freezer.state"}:
        path.rmdir()
        pytest.skip(f"{path.parent} has no freezer")
    yield path
    freeze(path, on=False)
    until = time.monotonic() + 10 * PATIENCE
    while (path / "cgroup.procs").read_text() and time.monotonic() < until:
        time.sleep(0.02)
    path.rmdir()


def freeze(cgroup: Path, *, on: bool) -> None:
    old = cgroup / "freezer.state"
    if old.exists():
        old.write_text("FROZEN" if on else "THAWED")
    else:
        (cgroup / "cgroup.freeze").write_text("1" if on else "0")


def test_a_frozen_process_is_told_with_its_cgroup(cgroup: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        (cgroup / "cgroup.procs").write_text(str(child.pid))
        assert found(child.pid) == ""
        freeze(cgroup, on=True)
        until = time.monotonic() + 10 * PATIENCE
        while not found(child.pid):
            assert time.monotonic() < until, Path(f"/proc/{child.pid}/status").read_text()
            time.sleep(0.02)
        assert found(child.pid) == f"/{cgroup.name}"
        freeze(cgroup, on=False)
        assert found(child.pid) == ""
    finally:
        freeze(cgroup, on=False)
        child.kill()
        child.wait()


def found(pid: int) -> str:
    state = Host().process_state(pid)
    assert state is not None
    return state.frozen_by
