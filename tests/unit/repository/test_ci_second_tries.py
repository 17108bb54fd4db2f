"""The second tries of `.ci/run`: a run is fine only where each part has ended well, at the second try at the latest."""

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


def test_a_part_that_fails_without_a_red_test_is_not_mended(tmp_path: Path) -> None:
    assert ci(tmp_path, "turn", "bad", "false") == 1
    assert (tmp_path / "bad.red").read_text() == "false\n"
    assert ci(tmp_path, "second_try") == 1


def test_a_red_test_that_is_green_alone_is_mended_and_named(tmp_path: Path) -> None:
    (tmp_path / "unit.red").write_text("true test_x.py::test_y\n")
    assert ci(tmp_path, "second_try") == 0
    assert "second tries: 1: true test_x.py::test_y" in (tmp_path / "summary").read_text()  # fmt: skip
    (tmp_path / "unit.red").write_text("false test_x.py::test_y\n")
    assert ci(tmp_path, "second_try") == 1


def test_too_many_red_tests_are_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "unit.red").write_text("".join(f"true test_x.py::test_{number}\n" for number in range(7)))  # fmt: skip
    assert ci(tmp_path, "second_try") == 1


def test_what_failed_without_a_word_is_not_mended(tmp_path: Path) -> None:
    """Second tries come where something has failed; if nobody has noted what, nothing can be tried again."""
    assert ci(tmp_path, "second_try") == 1


def test_a_part_that_is_killed_is_red(tmp_path: Path) -> None:
    """By the kernel, for its memory: it writes nothing any more, and xargs begins no other part."""
    words = ["bash", ".ci/run", "turn", "killed", "sleep", "2"]
    part = subprocess.Popen(words, cwd=ROOT, env=environ(tmp_path))
    until = time.monotonic() + 30
    while not (tmp_path / "killed.log").exists() and time.monotonic() < until:
        time.sleep(0.05)
    part.kill()
    part.wait()
    assert ci(tmp_path, "second_try") == 1
    assert "second tries: 1: sleep" in (tmp_path / "summary").read_text()


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
