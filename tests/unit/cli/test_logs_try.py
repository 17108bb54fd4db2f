"""`mldebug logs try`: which lines of a log are understood, as what, and which are not."""

import io
import json
import sys
from pathlib import Path

import pytest

from mldebug.cli import main as cli
from mldebug.core.plugins import create_all
from mldebug.jobs.logs.parser import LogParser
from mldebug.jobs.logs.trial import try_log

STEPS = "".join(f"step {n} loss {9 / n:.3f}\n" for n in range(1, 6))
OWN = "".join(f"it {n}: abc {9 / n:.3f}\n" for n in range(1, 4))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `mldebug logs try` with these arguments: its exit code, stdout and stderr."""
    code = cli.main(["logs", "try", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def test_it_says_what_was_read(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(f"Loading weights\n{STEPS}bye\n")
    code, out, _ = answer(capsys, str(log))
    assert code == 0
    assert out.splitlines() == [
        "5 of 7 lines understood",
        "  plain: 5 lines, step 1 to 5, 5 with a loss",
        "    step 1 loss 9.000",
        "    read as: step 1, loss 9",
    ]


def test_lines_that_were_not_read_are_shown_and_a_pattern_can_be_tried(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(f"hello\n{OWN}")
    code, out, _ = answer(capsys, str(log))
    assert code == 1
    assert "0 of 4 lines understood" in out
    assert "3 more lines with a number, in which no step was read, such as" in out
    assert "    it 1: abc 9.000" in out
    assert "no line tells a step" in out
    code, out, _ = answer(capsys, str(log), "--pattern", r"it (?P<step>\d+): abc (?P<loss>\S+)")
    assert code == 0
    assert "your pattern: 3 lines, step 1 to 3, 3 with a loss" in out


def test_progress_bars_blocks_and_cut_lines(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Carriage returns end lines, at any border between two reads; the last line needs no end."""
    bar = "".join(
        f"\rtrain: {n}%|#  | {n}/100 [00:0{n}<01:00, 1.00it/s, loss=2.{n}]" for n in range(1, 8)
    )
    log.write_bytes(bar.encode())
    code, out, _ = answer(capsys, str(log), "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["lines"], found["understood"]) == (7, 7)
    assert [
        (one["first_step"], one["last_step"], one["total"], one["with_loss"])
        for one in found["formats"]
    ] == [(1, 7, 100, 7)]


def test_stdin_and_what_is_no_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 40 + b"\n" + STEPS.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    code, out, _ = answer(capsys, "-")
    assert (code, "step 1 to 5" in out) == (0, True)
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere/train.log"], "cannot read /nowhere/train.log"),
        (["/proc"], "cannot read /proc"),
        (["/dev/null", "--pattern", "("], "is no regular expression"),
        (["/dev/null", "--pattern", r"(?P<other>\d+)"], "the legal names are"),
    ],
)
def test_what_cannot_be_tried_is_said(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answer(capsys, *arguments)
    assert code in (1, 2)
    assert words in err
    assert "way out:" in err
    assert not out


def test_an_empty_log_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer(capsys, "/dev/null")
    assert code == 1
    assert "0 of 0 lines understood" in out


def test_a_line_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 MiB of them, as a disk's zeros or a binary would be: never more than a piece at a time."""
    taken: list[int] = []
    parser = LogParser(create_all("logs"))
    monkeypatch.setattr(parser, "feed", lambda data: taken.append(len(data)) or [])
    trial = try_log((b"x" * (1 << 20) for _ in range(256)), parser)
    assert max(taken) <= (1 << 20) + 1
    assert sum(taken) >= 256 << 20
    assert (trial.understood, trial.left) == (0, [])
