"""Fixtures of the tests that start real jobs: who runs them, and where."""

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from processes.harness import User, build_fake_cuda, environment_of_jobs, folder_for


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `--each-job-once` says, always the same."""
    if not config.getoption("--each-job-once"):
        return
    out = _second_times(items)
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def _second_times(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of each test that both users run, the one whose turn it is not.

    Turns are counted in each file: the answer is the same whichever other files are run.
    """
    files: dict[Path, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if "user" in getattr(item, "fixturenames", ()):
            groups = files.setdefault(item.path, {})
            groups.setdefault(re.sub("as_is|ordinary", "", item.nodeid), []).append(item)
    return [item for groups in files.values() for item in _second_times_of(groups.values())]


def _second_times_of(groups: Iterable[list[pytest.Item]]) -> list[pytest.Item]:
    pairs = [group for group in groups if len(group) == 2]
    return [group[number % 2] for number, group in enumerate(pairs)]


@pytest.fixture(scope="session", params=["as_is", "ordinary"])
def user(request: pytest.FixtureRequest) -> User:
    """Who runs the job and mldebug: whoever runs the tests, and an ordinary user."""
    return User() if request.param == "as_is" else _ordinary_user()


@pytest.fixture
def folder(user: User) -> Iterator[Path]:
    """A folder that the job's user may write."""
    with folder_for(user) as path:
        yield path


@pytest.fixture(scope="session")
def library() -> Iterator[Path]:
    """The pretended GPU runtime, where everybody may read it: pytest's own folders are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="mldebug-library-"))
    folder.chmod(0o755)
    yield build_fake_cuda(folder)
    shutil.rmtree(folder)


def _ordinary_user() -> User:
    """MLDEBUG_TEST_USER, who must be able to run this Python; without it `nobody`, or a skip."""
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user already")
    name = os.environ.get("MLDEBUG_TEST_USER", "nobody")
    reason = _why_not(name)
    if reason and "MLDEBUG_TEST_USER" not in os.environ:
        pytest.skip(f"{name} cannot run {sys.executable}: {reason}")
    assert not reason, f"MLDEBUG_TEST_USER={name} cannot run {sys.executable}: {reason}"
    return User(name)


def _why_not(name: str) -> str:
    entry = pwd.getpwnam(name)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import torch, mldebug_agents"], check=False, cwd="/",
            env=environment_of_jobs(Path("/")), capture_output=True, user=entry.pw_uid, group=entry.pw_gid, extra_groups=[],
        )  # fmt: skip
    except PermissionError as error:
        return str(error)
    return done.stderr.decode(errors="replace")[-300:] if done.returncode else ""
