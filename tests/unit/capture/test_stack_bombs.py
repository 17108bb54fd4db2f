"""Files of stacks that are made to cost memory or time; each beside one that is read as before."""

import itertools
import json
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from mldebug.capture.dump_folder import _found_in, captures_from_dumps
from mldebug.capture.exports.json_texts import texts_inside
from mldebug.capture.exports.log_exports import unexported
from mldebug.capture.stacks import files, json_form, pyspy
from mldebug.capture.stacks.files import DumpFile, read_file
from mldebug.capture.stacks.json_form import take_json
from mldebug.capture.stacks.process_text import ProcessText
from mldebug.capture.stacks.pyspy import parse_pyspy_json
from mldebug.capture.stacks.reader import StackText, is_stack_line
from mldebug.core.errors import EvidenceError
from mldebug.incidents import recorded_end

STACK = [
    {
        "pid": 7,
        "thread_id": 1,
        "thread_name": "MainThread",
        "active": False,
        "frames": [{"name": "slow", "filename": "train.py", "line": 9}],
    }
]
DUMP = 'Process 7: python train.py\n\nThread 7 (idle): "MainThread"\n    slow (train.py:9)\n'


@pytest.mark.parametrize("end", ["\n", "\0", "x\n"])
def test_a_file_of_millions_of_lines_is_not_taken_apart(tmp_path: Path, end: str) -> None:
    file = tmp_path / "rank0.txt"
    file.write_text(DUMP + end * (files.MAX_LINES + 1))
    found = read_file(file, tmp_path)
    assert found.trouble == "longer than 1,000,000 lines"
    assert not found.text.processes
    with pytest.raises(EvidenceError, match="longer than"):
        captures_from_dumps(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "timestamp,message\n" + "a\n" * 1_500_000,
        'timestamp,message\n"' + "ab\n" * 1_500_000,
        "{ab\n" * 1_500_000,
        "[" + "{}," * 4_100_000 + "{}]",
        '{"results": [' + "[]," * 4_100_000 + "[]]}",
        "ab\n" * 3_000_000,
    ],
    ids=["CSV", "one field", "JSON lines", "objects", "lists", "log"],
)
def test_what_is_no_export_of_millions_of_records_costs_little_more_than_its_bytes(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "rank0.txt"
    file.write_text(text)
    tracemalloc.start()
    try:
        read_file(file, tmp_path)
        recorded_end._last_lines(unexported(text))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_of_a_long_log_the_last_lines_are_read() -> None:
    for text in ("a\n" * 5 + "b\nc\n", "a\n" * 5 + "b\nc", "b\nc\n", "c", "", "\n", "a\n\n\nb"):
        for most in (1, 2, 3, 100):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(recorded_end, "MAX_LINES", most)
                assert recorded_end._last_lines(text) == text.splitlines()[-most:], (text, most)


def test_a_file_of_a_hundred_thousand_lines_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rank0.txt"
    file.write_text(DUMP + "\n" * 100_000)
    assert [one.pid for one in read_file(file, tmp_path).text.processes] == [7]


@pytest.mark.parametrize("indent", [None, 2])
def test_of_many_values_each_is_read_without_those_behind_it(indent: int | None) -> None:
    value = json.dumps(STACK, indent=indent)
    taken = 0

    def lines() -> Iterator[str]:
        nonlocal taken
        for line in itertools.chain.from_iterable(itertools.repeat(value.split("\n"))):
            taken += 1
            yield line

    found = take_json(lines())
    assert [one.pid for one in found.processes] == [7]
    assert found.lines == value.count("\n") + 1
    assert taken <= 2 * found.lines


def test_what_is_no_value_ends_with_the_lines() -> None:
    assert take_json(iter(['[{"pid": 7,', '"frames": [', "nothing"])).lines == 0
    assert take_json(iter([])).lines == 0


def test_a_file_of_very_many_processes_costs_time_in_proportion(tmp_path: Path) -> None:
    """Compared with each other they would take minutes."""
    processes = [ProcessText(pid=number) for number in range(20_000)]
    file = DumpFile("all.txt", 0.0, StackText(processes=tuple(processes)))
    began = time.process_time()
    assert len(list(_found_in(file))) == 20_000
    assert time.process_time() - began < 3


def test_json_whose_names_are_all_numbers_costs_its_bytes() -> None:
    """Each name was made a pattern of its own, to look whether the text below calls it a process: 3,000,000 of them took minutes."""
    text = json.dumps({str(number): "x" for number in range(60_000)})
    before = time.thread_time()
    assert texts_inside(text, is_stack_line) == text
    assert time.thread_time() - before < 1


@pytest.mark.parametrize(("words", "headed"), [("Process 0: a", False), ("Process 10: a", True)])
def test_a_name_that_the_text_calls_a_process_is_no_rank(words: str, headed: bool) -> None:
    text = f"{words}\n{DUMP.partition(chr(10))[2]}"
    found = texts_inside(json.dumps({"0": text, "1": text}), is_stack_line)
    assert (found.count("== rank"), DUMP.count("slow")) == (2 if headed else 0, 1)


def test_threads_of_a_few_bytes_each_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB of empty threads became 900 MiB, and a list of empty lists 600."""
    empty = '{"frames":[]}'
    assert len(take_json([f"[{(empty + ',') * 99}{empty}]"]).processes) == 1
    for module in (pyspy, json_form):
        monkeypatch.setattr(module, "MAX_OBJECTS", 99)
    with pytest.raises(EvidenceError, match="more threads and frames"):
        parse_pyspy_json(f"[{(empty + ',') * 99}{empty}]")
    decoded = Mock(wraps=json_form._DECODER)
    monkeypatch.setattr(json_form, "_DECODER", decoded)
    for inner in (empty, "[]", "{}", "1"):
        assert not take_json([f"[{(inner + ',') * 99 * 5}{inner}]"]).lines
    assert not decoded.raw_decode.called


def test_as_many_frames_as_py_spy_writes_are_read() -> None:
    frame = '{"name":"slow","filename":"train.py","short_filename":"train.py","line":9}'
    text = f'[{{"thread_id":1,"frames":[{(frame + ",") * 150_000}{frame}]}}]'
    (stack,) = parse_pyspy_json(text)
    assert stack.frames[0].function == stack.frames[-1].function == "slow"
    assert take_json([text]).processes[0].stacks == (stack,)
