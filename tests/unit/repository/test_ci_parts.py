"""The parts of `.ci/run`: a run is fine only where each has ended well, and nothing is tried twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.system.patience import PATIENCE

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason=".ci/run is for root")


def environ(streams: Path) -> dict[str, str]:
    return os.environ | {"STREAMS": str(streams), "ENDS": str(int(time.time()) + 60)}


def ci(streams: Path, *words: str) -> int:
    """The exit code of one function of `.ci/run`."""
    done = subprocess.run(["bash", ".ci/run", *words], cwd=ROOT, env=environ(streams), capture_output=True, timeout=60, check=False)  # fmt: skip
    return done.returncode


def test_a_part_that_ends_well_is_not_red(tmp_path: Path) -> None:
    assert ci(tmp_path, "turn", "good", "true") == 0
    assert not [*tmp_path.glob("*.red")]
    assert "good: fine" in (tmp_path / "summary").read_text()


def test_a_part_that_fails_without_a_red_test_is_told(tmp_path: Path) -> None:
    assert ci(tmp_path, "turn", "bad", "false") == 1
    assert (tmp_path / "bad.red").read_text() == "false\n"
    assert ci(tmp_path, "tell_red") == 1
    assert "red: false\n" in (tmp_path / "summary").read_text()


def test_a_red_test_is_named_and_nothing_tries_it_again(tmp_path: Path) -> None:
    """`false` and then `true`: who were tried twice would be green."""
    again = tmp_path / "again"
    test = f"echo FAILED test_x.py::test_y; test -e {again} || {{ touch {again}; false; }}"
    (tmp_path / "test").write_text(test)
    assert ci(tmp_path, "turn", "unit", "bash", str(tmp_path / "test")) == 1
    assert ci(tmp_path, "tell_red") == 1
    assert "red: bash test_x.py::test_y\n" in (tmp_path / "summary").read_text()


def test_where_nothing_is_red_it_says_so(tmp_path: Path) -> None:
    assert ci(tmp_path, "turn", "good", "true") == 0
    assert ci(tmp_path, "tell_red") == 0
    assert "red: no test\n" in (tmp_path / "summary").read_text()


def test_a_part_that_is_killed_is_red(tmp_path: Path) -> None:
    """By the kernel, for its memory: it writes nothing any more, and xargs begins no other part."""
    words = ["bash", ".ci/run", "turn", "killed", "sleep", "2"]
    part = subprocess.Popen(words, cwd=ROOT, env=environ(tmp_path))
    until = time.monotonic() + 30
    while not (tmp_path / "killed.log").exists() and time.monotonic() < until:
        time.sleep(0.05)
    part.kill()
    part.wait()
    assert ci(tmp_path, "tell_red") == 1
    assert "red: sleep\n" in (tmp_path / "summary").read_text()


# In place of what installs, lists and tests; parts as those of `.ci/run`: NAME FUNCTION ARGUMENT
OTHER_PARTS = """
prepare_machine() { true; }
make() { true; }
prepare_ordinary_user() { sleep 1; touch "$STREAMS/copied"; }
after_copy() { until_ended ordinary-user; test -e "$STREAMS/copied"; }
of_the_machine() { echo machine tried machine; }
computing() { echo computing1 tried computing1; echo computing2 tried computing2; }
waiting() { echo ordinary after_copy; echo waits tried waits; }
quiet() { echo quiet tried quiet; }
host() { true; }
tried() { [[ $1 != "$RED_PART" ]]; }
"""
LAST_WORDS = "if [[ $EUID -ne 0 ]]"
ALL = ("packages", "environment", "ordinary-user", "machine", "computing1", "computing2", "ordinary", "waits", "quiet", "quiet-exits")  # fmt: skip


@pytest.mark.parametrize("red", ["nobody", "machine", "computing2", "waits", "quiet"])
def test_a_whole_run_has_all_parts_and_is_as_red_as_any(tmp_path: Path, red: str) -> None:
    """Of all three queues and the quiet end; who needs the ordinary user's copy waits for it."""
    (tmp_path / ".ci").mkdir()
    text = (ROOT / ".ci/run").read_text().replace(LAST_WORDS, OTHER_PARTS + LAST_WORDS, 1)
    (tmp_path / ".ci/run").write_text(text)
    done = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, env=os.environ | {"RED_PART": red}, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)  # fmt: skip
    assert done.returncode == int(red in ALL), done.stdout + done.stderr
    for name in ALL:
        assert f"::: {name}: {'FAILED' if name == red else 'fine'}" in done.stdout
    assert f"::: red: {'tried' if red in ALL else 'no test'}\n" in done.stdout


PART = """import os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # as conftest.py
begun, ended = (pathlib.Path(sys.argv[1] + end) for end in (".begun", ".ended"))
try:
    begun.with_suffix(".new").write_text(str(os.getpid()))
    begun.with_suffix(".new").rename(begun)
    time.sleep(120)
except KeyboardInterrupt:
    time.sleep(0.5)
    ended.touch()
"""


def test_an_interrupted_run_leaves_no_part_behind(tmp_path: Path) -> None:
    """They have process groups of their own, where Ctrl-C of a terminal does not come; each ends what it has started."""
    (tmp_path / "part.py").write_text(PART)
    lines = [f"{name} {sys.executable} {tmp_path}/part.py {tmp_path}/{name}\n" for name in "abc"]
    (tmp_path / "parts").write_text("".join(lines))
    words = ["bash", ".ci/run", "interruptible", "in_turns", "2"]
    with (tmp_path / "parts").open() as parts:
        run = subprocess.Popen(words, cwd=ROOT, env=environ(tmp_path), stdin=parts)
    begun = [tmp_path / "a.begun", tmp_path / "b.begun"]
    until = time.monotonic() + 60 * PATIENCE
    while not all(file.exists() for file in begun) and time.monotonic() < until:
        time.sleep(0.05)
    pids = [int(file.read_text()) for file in begun]
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    assert {file.name for file in tmp_path.glob("*.ended")} == {"a.ended", "b.ended"}
    assert not (tmp_path / "c.begun").exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
