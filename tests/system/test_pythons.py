"""The Pythons that are newer than this machine: out of a Debian that is unpacked, not booted."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.machine import base_files, need
from unit.training.test_hook import MORE

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(900)]
SUITE, NEW = "sid", ("3.14", "3.15")
TESTS = Path(__file__).parents[1] / "unit/training"
WRAPPER = """#!/bin/sh
root={root}
libraries="$root/usr/lib/$(uname -m)-linux-gnu"
exec "$libraries"/ld-linux-*.so.* --argv0 "$0" --library-path "$libraries" "$root/usr/bin/{name}" "$@"
"""


@pytest.fixture(scope="module")
def pythons() -> Iterator[str]:
    """Programs that run each of them by its own C library, without a change of root."""
    need("debootstrap")
    packages = ",".join(f"python{version}" for version in NEW)
    with base_files(SUITE, packages) as root:
        places = []
        for folder in (root.parent, root):  # other users run them, too
            folder.chmod(folder.stat().st_mode | 0o111)
        for version in NEW:
            place = (
                root / "usr/bin" / f"start-python{version}"
            )  # beside it: that is how it finds its library
            place.write_text(WRAPPER.format(root=root, name=f"python{version}"))
            place.chmod(0o755)
            places.append(str(place))
        yield ":".join(places)


@pytest.mark.parametrize("version", NEW)
def test_the_hook_holds_in_a_newer_python(pythons: str, version: str) -> None:
    repeat(pythons, ["hook", "counts"], f"{version} or newest")


def test_the_tracer_holds_in_a_newer_python(pythons: str) -> None:
    """Written in Python; for the writer in C that Debian's headers would be needed."""
    repeat(pythons, ["tracer"], "3.14-python")


def test_a_newer_python_is_traced_while_it_runs(pythons: str) -> None:
    repeat(pythons, ["trace_attach"], "3.14 or 3.15")


def repeat(pythons: str, names: list[str], chosen: str) -> None:
    """Run these tests by the newer Pythons, and none of them may be skipped."""
    files = [str(TESTS / f"test_{name}.py") for name in names]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k"]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [*argv, chosen], env={**env, MORE: pythons}, capture_output=True,
        text=True, timeout=600, check=False, cwd=TESTS.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout
