"""The end of a rank's log: its last lines, and the tracebacks that stand further up."""

import os
from pathlib import Path

import pytest

from mldebug.core.model import LogTail, OpenFile
from mldebug_agents.jobs.logs.tail import MAX_BYTES, MAX_LINES, MAX_TRACEBACKS, read_log
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.system.whose import MINE

STEP = "step 7 loss 2.5"


def traceback(number: int, deep: int = 1) -> list[str]:
    frames = [line for n in range(deep) for line in (f'  File "train.py", line {n}, in load', "    load()")]  # fmt: skip
    return [f"12:03:{number:02} retry", "Traceback (most recent call last):", *frames, f"ValueError: shard {number}"]  # fmt: skip


def tail_of(path: Path, lines: list[str]) -> LogTail:
    path.write_text("".join(f"{line}\n" for line in lines))
    with path.open("a") as file, Spawner() as spawner, Reader(spawner) as reader:
        found = read_log(reader, os.getpid(), OpenFile(fd=file.fileno(), target=str(path), kind="file"), MINE)  # fmt: skip
    assert isinstance(found, LogTail)
    return found


def test_a_traceback_above_the_last_lines_is_kept_with_what_stands_before_it(
    tmp_path: Path,
) -> None:
    found = tail_of(tmp_path / "job.log", [*[STEP] * 5, *traceback(1), *[STEP] * 500])
    assert found.lines == (STEP,) * MAX_LINES
    assert found.earlier == (STEP, *traceback(1))


def test_one_among_the_last_lines_is_not_told_twice(tmp_path: Path) -> None:
    found = tail_of(tmp_path / "job.log", [*[STEP] * 500, *traceback(1)])
    assert found.earlier == ()
    assert found.lines[-1] == "ValueError: shard 1"


def test_of_many_the_last_few_are_kept_and_of_a_deep_one_both_ends(tmp_path: Path) -> None:
    many = [line for n in range(20) for line in traceback(n, deep=100)]
    found = tail_of(tmp_path / "job.log", [*many, *[STEP] * 500])
    errors = [line for line in found.earlier if line.startswith("ValueError")]
    assert errors == [f"ValueError: shard {n}" for n in range(20 - MAX_TRACEBACKS, 20)]
    assert len(found.earlier) == MAX_TRACEBACKS * MAX_LINES


@pytest.mark.parametrize("secret", ["token=hf_abcdefghijklmnopqrstuvwxyz123456"])
def test_secrets_in_it_are_hidden(tmp_path: Path, secret: str) -> None:
    found = tail_of(
        tmp_path / "job.log", [*traceback(1)[:-1], f"ValueError: {secret}", *[STEP] * 50]
    )
    assert "abcdefghijkl" not in "".join(found.earlier)


def test_what_is_further_up_than_it_is_searched_costs_nothing(tmp_path: Path) -> None:
    lines = [*traceback(1), *[STEP] * (MAX_BYTES // len(STEP) + 100)]
    assert tail_of(tmp_path / "job.log", lines).earlier == ()
