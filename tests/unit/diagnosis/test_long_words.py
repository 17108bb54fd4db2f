"""Words of a job that are made to cost time: one line, or one error, as long as what is read of a file."""

import json
import time
from collections.abc import Callable

import pytest

from mldebug.diagnosis.exits.words.last_words import last_error
from mldebug.diagnosis.exits.words.marks import MAX_LINE, take_apart
from mldebug.diagnosis.exits.words.output import parse_error_file

READ = 256 << 10  # of a log, and of an error file
PUMPS = (
    "xla::CoordinationService" + "1" * READ,
    "std::__basic_file" + "_" * READ,
    "a " * (READ // 2),
)


def judged(text: str) -> None:
    lines = take_apart(["Traceback (most recent call last):", '  File "/a.py", line 3, in f', f"RuntimeError: {text}"], {}).every  # fmt: skip
    assert last_error(lines, "its log", rank=0) is not None


def parsed(text: str) -> None:
    file = {"message": {"message": text, "extraInfo": {"py_callstack": text}}}
    assert parse_error_file(json.dumps(file).encode()) is not None


@pytest.mark.parametrize("read", [judged, parsed])
@pytest.mark.parametrize("text", PUMPS, ids=["digits", "names", "words"])
def test_the_errors_of_64_ranks_cost_no_minute(read: Callable[[str], None], text: str) -> None:
    began = time.process_time()
    read(text)
    assert time.process_time() - began < 0.25  # of a processor; it was 2 s, for each rank


def test_a_long_line_keeps_its_beginning_and_its_end() -> None:
    (line,) = take_apart(
        [f"[rank3]: RuntimeError: bad {'x' * 9000} Last error: by peer 7"], {}
    ).by_rank[3]
    assert len(line) <= MAX_LINE
    assert line.startswith("RuntimeError: bad x")
    assert line.endswith("x Last error: by peer 7")


def test_lines_that_are_short_stay_and_a_collector_s_are_cut_one_by_one() -> None:
    text = "\n".join(
        [
            "Traceback (most recent call last):",
            *("  " + "y" * 900 for _ in range(9)),
            "ValueError: bad",
        ]
    )
    words = take_apart(
        [json.dumps({"log": text, "stream": "stderr", "time": "2026-11-21T05:50:41Z"})], {}
    )
    assert words.every == tuple(text.split("\n"))
