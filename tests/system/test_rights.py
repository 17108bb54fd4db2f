"""The table in docs/rights.md is what this kernel does: every rung is climbed as every column."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from mldebug_agents.jobs.job_start import hook_folder
from system.lending import OWNER, UNIT, VISITOR, Column, lent
from system.machine import need, wait_for
from system.page import COLUMNS, ROWS, documented, expected

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

HERE = Path(__file__).parent
PYSTACK_NEEDS = ("pystack", "click", "rich", "pygments", "markdown_it", "mdurl")


class Place(NamedTuple):
    """What every visitor can reach: the tools, and what the target wrote."""

    python: str
    tools: Path
    events: Path
    target: int


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A rank of another user in a network namespace of its own, and tools that every user can start."""
    need("setpriv", "unshare")
    folder = Path("/tmp") / f"mldebug-rights-{os.getpid()}"
    events = folder / "events"
    events.mkdir(parents=True)
    os.chown(events, OWNER, OWNER)
    for file in ("rungs.py", "stranger.py"):
        shutil.copy(HERE / file, folder)
    shutil.copytree(hook_folder().parent, folder / "mldebug_training")
    python = _python()
    _copy_tools(folder)
    argv = [
        "unshare",
        "--net",
        *lent(Column(OWNER)),
        python,
        str(folder / "stranger.py"),
        str(events),
    ]
    # a session of its own: SIGCONT is free within one
    environment = {"RANK": "2", "LANG": "C.UTF-8"}
    target = subprocess.Popen(argv, cwd="/", env=environment, start_new_session=True)
    try:
        wait_for("the target", (events / "ready").exists, 20)
        yield Place(python, folder, events, target.pid)
    finally:
        target.kill()
        target.wait()
        shutil.rmtree(folder)


def _python() -> str:
    """This Python where everybody may start it, else the system's."""
    for python in (sys.executable, "/usr/bin/python3"):
        output = subprocess.run(
            [*lent(Column(VISITOR)), python, "-c", "import sys; print(sys.version_info[:2])"],
            check=False, capture_output=True, text=True, cwd="/", env={},
        ).stdout  # fmt: skip
        if output.strip() == str(sys.version_info[:2]):
            return python
    return pytest.fail("other users can start neither this Python nor an equal one in /usr/bin")


def _copy_tools(folder: Path) -> None:
    shutil.copy(Path(sys.executable).parent / "py-spy", folder)
    for name in PYSTACK_NEEDS:
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        shutil.copytree(Path(spec.origin).parent, folder / "site-packages" / name)
        libraries = Path(spec.origin).parent.with_name(f"{name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / "site-packages" / libraries.name)


def climb(place: Place, column: Column) -> dict[str, bool]:
    done = subprocess.run(
        [*lent(column), place.python, str(place.tools / "rungs.py"), str(place.target), str(place.tools),
         str(place.events)],
        check=False, capture_output=True, text=True, cwd="/", timeout=120, env={"LANG": "C.UTF-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, bool] = json.loads(done.stdout)
    return answer


def test_the_page_has_all_rows_and_columns() -> None:
    table = documented()
    assert list(table) == list(ROWS)
    assert all(list(row) == list(COLUMNS) for row in table.values())


@pytest.mark.parametrize("name", COLUMNS)
def test_the_table_is_what_the_kernel_does(place: Place, name: str) -> None:
    assert _setting("/proc/sys/kernel/yama/ptrace_scope") in ("", "0"), "the page assumes no Yama"
    measured = climb(place, COLUMNS[name])
    page = expected(name)
    if _setting("/proc/sys/kernel/dmesg_restrict") != "1":
        page["kmsg"] = measured["kmsg"]  # the page is about nodes that restrict it
    assert measured == page


def test_root_of_a_container_with_the_capabilities_of_the_unit_reads_what_the_unit_reads(
    place: Place,
) -> None:
    """The DaemonSet: Kubernetes lends capabilities to no other user."""
    assert climb(place, Column(0, UNIT)) == climb(place, Column(VISITOR, UNIT))


def _setting(path: str) -> str:
    return Path(path).read_text().strip() if Path(path).exists() else ""
