"""The second tries of `.ci/run`: a run is fine only where each part has ended well, at the second try at the latest."""

import os
import subprocess
import time
from pathlib import Path

import pytest

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
