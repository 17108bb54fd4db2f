"""Finding tracebacks costs work in proportion to the log, however many of them have no end."""

from collections.abc import Callable, Sequence
from typing import overload

import pytest

from mldebug.diagnosis.exits.words.tracebacks import BETWEEN, find_tracebacks
from mldebug.diagnosis.raised import exceptions_in

HEAD, FRAME = "Traceback (most recent call last):", '  File "/job/train.py", line 3, in step'


class CountedLines(Sequence[str]):
    """Lines that count how many of them are read."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = tuple(lines)
        self.read = 0

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        found = self._lines[at]
        self.read += 1 if isinstance(at, int) else len(found)
        return found


def plain(number: int) -> list[str]:
    return [HEAD, FRAME]


def behind_a_time(number: int) -> list[str]:
    return [f"12:00:{number % 60:02} {line}" for line in (HEAD, FRAME)]


def behind_another_word_each(number: int) -> list[str]:
    word = "".join(chr(97 + int(digit)) for digit in str(number))
    return [f"{word} {line}" for line in (HEAD, FRAME)]


def of_a_launcher(number: int) -> list[str]:
    return [HEAD, FRAME, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"]


def whole(number: int) -> list[str]:
    return [HEAD, FRAME, f"ValueError: shard {number}"]


def chained(number: int) -> list[str]:
    return [*whole(number), "", "During handling of the above exception, another one:", ""]


@pytest.mark.parametrize(
    "block",
    [plain, behind_a_time, behind_another_word_each, of_a_launcher, whole, chained],
    ids=lambda block: block.__name__,
)
def test_each_line_is_read_a_few_times(block: Callable[[int], list[str]]) -> None:
    """A few for whether a traceback begins or ends there; and `BETWEEN` below each first line for what stands before its lines."""
    for times in (500, 2000):
        lines = CountedLines([line for number in range(times) for line in block(number)])
        find_tracebacks(lines)
        assert lines.read <= len(lines) * 5 + times * (BETWEEN + 2)


def test_a_whole_one_is_found_between_halves() -> None:
    lines = [line for number in range(50) for line in plain(number)]
    found = find_tracebacks([*lines, "ValueError: shard 7", HEAD, FRAME, "KeyError: 'x'"])
    assert [one.error for one in found][-1] == "KeyError: 'x'"
    assert {one.error for one in found[:-1]} == {"ValueError: shard 7"}


def test_prefixes_are_kept_apart() -> None:
    lines = [f"a {HEAD}", f"b {HEAD}", f"a {FRAME}", f"b {FRAME}", "b KeyError: 'x'", "a ValueError: 7"]  # fmt: skip
    assert [one.error for one in find_tracebacks(lines)] == ["ValueError: 7", "KeyError: 'x'"]


@pytest.mark.parametrize("between", ["", "step 3 loss 2.0", "a line of a thread"])
def test_exceptions_of_a_log_are_read_with_the_lines_between_them_once(between: str) -> None:
    for times in (100, 400):
        lines = CountedLines(
            [line for number in range(times) for line in (*whole(number), between)]
        )
        found = exceptions_in(lines)
        assert len(found) == times
        assert lines.read <= len(lines) * 12 + times * (BETWEEN + 2)
        assert [one.trained_on for one in found] == [between.startswith("step")] * times


def test_steps_behind_the_last_exception_count_for_all() -> None:
    lines = [*whole(1), "x", *whole(2), "step 3 loss 2.0", *whole(3)]
    assert [one.trained_on for one in exceptions_in(lines)] == [True, True, False]
