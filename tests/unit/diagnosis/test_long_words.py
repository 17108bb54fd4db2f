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


@pytest.mark.parametrize("words", [
    "Last error: socketProgress: Connection closed by remote peer node7<41234>",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600000 milliseconds",
])  # fmt: skip
@pytest.mark.parametrize("before", [2000, 3600, 6000, 60_000])
def test_an_error_that_only_its_middle_blames_on_a_peer_is_not_its_speaker_s_own(words: str, before: int) -> None:  # fmt: skip
    text = f"RuntimeError: {'x ' * (before // 2)}{words} {'y ' * 3000}"
    lines = take_apart(["Traceback (most recent call last):", '  File "/a.py", line 3, in f', text], {}).every  # fmt: skip
    assert len(lines[-1]) <= MAX_LINE
    found = last_error(lines, "its log", rank=0)
    assert found is not None
    assert found.blames_peer
    file = {"message": {"message": text, "extraInfo": {}}}
    of_file = parse_error_file(json.dumps(file).encode())
    assert of_file is not None
    assert of_file.blames_peer


def test_a_long_error_without_such_words_stays_its_speaker_s_own() -> None:
    text = f"ValueError: bad label {'7, ' * 9000}"
    lines = take_apart(["Traceback (most recent call last):", '  File "/a.py", line 3, in f', text], {}).every  # fmt: skip
    found = last_error(lines, "its log", rank=0)
    assert found is not None
    assert not found.blames_peer


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
