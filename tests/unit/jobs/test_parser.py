"""logparser: bytes in any chunks, with anything in them, and what is counted."""

import itertools
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.core.plugins import create, create_all, load
from mldebug.jobs.logs.parser import MAX_LINE, MOST_SECONDS, LogParser
from mldebug.jobs.logs.records import LogRecord

SIGNALS = Path(__file__).parents[2] / "fixtures/h200/signals"
LINE = " iteration %d/ 100 | elapsed time per iteration (ms): 500.0 | lm loss: 1.5E+00 |\n"


def parser() -> LogParser:
    return LogParser(create_all("logs"))


def steps(records: list[LogRecord]) -> list[int | None]:
    return [record.step for record in records]


@pytest.mark.parametrize("name", ["sleep", "frozen", "kernel", "kill", "loop", "stop"])
def test_recorded_logs_give_every_step_in_order(name: str) -> None:
    it = parser()
    found = steps(it.feed((SIGNALS / f"{name}.log").read_bytes()) + it.flush())
    assert len(found) > 10
    assert found == [10 * (n + 1) for n in range(len(found))]
    assert it.records == len(found)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 400), max_size=12))
def test_the_cuts_do_not_matter(cuts: list[int]) -> None:
    data = (
        LINE % 1 + "noise ü\r\n" + LINE % 2 + "\r 5%|▏ | 3/9 [00:01<00:02, 2.0it/s]\r" + LINE % 4
    ).encode()
    places = [0, *sorted(cuts), len(data)]
    it = parser()
    found = []
    for start, end in itertools.pairwise(places):
        found += it.feed(data[start:end])
    assert steps(found) == [1, 2, 3, 4]
    assert (it.bytes, it.lines, it.binary, it.oversized) == (len(data), 5, 0, 0)


@pytest.mark.parametrize(
    "bar",
    [
        "%dit [00:10, 12.1it/s]",
        "Epoch 0: |          | %d/? [00:01<?, 2.50it/s, v_num=0]",
        "Epoch 0:  12%%|#   | %d/100 [00:01<00:09, 2.50it/s, v_num=0]",
        "\x1b[1m%d/100\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━━━\x1b[0m \x1b[1m0s\x1b[0m 5ms/step - loss: 0.3",
    ],
)
def test_a_bar_that_is_drawn_again_in_one_line(bar: str) -> None:
    it = parser()
    found = [record for n in range(3, 9) for record in it.feed(f"\r{bar % n}".encode())]
    assert steps(found + it.feed(b"\n")) == [3, 4, 5, 6, 7, 8]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=300),
            st.sampled_from([LINE.encode() % 7, b"\x1b[31mstep", b"\0" * 99]),
        ),
        max_size=8,
    )
)
def test_no_bytes_make_it_raise(chunks: list[bytes]) -> None:
    it = parser()
    for chunk in chunks:
        it.feed(chunk)
        it.flush()
    assert it.bytes == sum(map(len, chunks))
    assert it.held <= MAX_LINE


def test_a_line_of_100_mb_costs_bounded_memory_and_only_itself() -> None:
    it = parser()
    chunk = b"x" * (1 << 20)
    it.feed((LINE % 1).encode())
    tracemalloc.start()
    for _ in range(100):
        assert it.feed(chunk) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert steps(it.feed(b"step 3 loss 1.0\n" + (LINE % 2).encode())) == [2]
    assert it.oversized == 1
    assert peak < 4 << 20


def test_one_chunk_of_many_slices_costs_bounded_memory() -> None:
    it = parser()
    data = (LINE % 5).encode() * 40_000
    tracemalloc.start()
    found = it.feed(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 40_000
    assert peak < 40 << 20


def test_a_too_long_line_within_a_chunk_is_dropped_and_counted() -> None:
    it = parser()
    data = (LINE % 1).encode() + b"y" * (MAX_LINE + 1) + b"\n" + (LINE % 2).encode()
    assert steps(it.feed(data)) == [1, 2]
    assert it.oversized == 1


def test_the_hole_that_copytruncate_leaves_is_skipped() -> None:
    it = parser()
    assert steps(it.feed(b"\0" * 100_000 + (LINE % 9).encode())) == [9]
    assert (it.binary, it.oversized) == (1, 0)


def test_binary_lines_are_counted_and_do_no_harm() -> None:
    it = parser()
    assert steps(
        it.feed(b"\xff\xfe\x80 junk\n" + bytes(range(128, 256)) + b"\n" + (LINE % 3).encode())
    ) == [3]
    assert it.binary == 2


def test_colours_are_ignored() -> None:
    assert steps(parser().feed(b"\x1b[32mstep\x1b[0m 12 \x1b[1mloss\x1b[0m 0.5\n")) == [12]


def test_a_progress_bar_counts_before_the_next_one_is_drawn_and_only_once() -> None:
    it = parser()
    bar = "\r 12%|█▏ | {}/1000 [00:10<01:20, 10.0it/s]"
    assert steps(it.feed(bar.format(123).encode())) == []
    assert steps(it.flush()) == [123]
    assert it.flush() == []
    assert steps(it.feed(bar.format(124).encode())) == []
    assert steps(it.flush()) == [124]
    assert steps(it.feed(b"\n" + (LINE % 3).encode())) == [3]
    assert it.records == 3


def test_a_settled_line_that_goes_on_is_read_again() -> None:
    it = parser()
    whole = (LINE % 3).encode()
    cut = whole.index(b"| lm") + 1
    it.feed(whole[:cut])
    assert [record.loss for record in it.flush()] == [None]
    assert [record.loss for record in it.feed(whole[cut:])] == [1.5]


def test_a_number_cut_in_two_is_not_settled() -> None:
    it = parser()
    it.feed(b"step 1")
    assert it.flush() == []
    assert steps(it.feed(b"23 loss 0.5\n")) == [123]


def test_resync_drops_the_rest_of_a_line() -> None:
    it = parser()
    it.feed(b"step 1")
    it.resync()
    assert it.feed(b"99 loss 0.5") == []
    assert steps(it.feed(b" and more\nstep 2 loss 0.5\n")) == [2]


class Counting:
    """A format that counts how often it is asked."""

    generic = False
    signs = ()

    def __init__(self, word: str) -> None:
        self.word = word
        self.requests = 0

    def parse(self, line: str) -> LogRecord | None:
        self.requests += 1
        return LogRecord(format=self.word) if self.word in line else None


class Generic(Counting):
    generic = True


def test_the_format_that_matched_is_tried_first_and_generic_ones_last() -> None:
    every, one, two = Generic("w"), Counting("one"), Counting("two w")
    it = LogParser([every, one, two])
    assert [record.format for record in it.feed(b"w\n" + b"two w\n" * 5)] == ["w", *["two w"] * 5]
    assert (every.requests, one.requests, two.requests) == (1, 2, 6)


class Noting:
    """A format that notes which lines it was given."""

    generic, signs = False, ("step",)

    def __init__(self) -> None:
        self.lines: list[str] = []

    def parse(self, line: str) -> LogRecord | None:
        self.lines.append(line)
        return None


def test_a_line_without_a_word_of_any_format_is_not_parsed() -> None:
    """Also where the user's format is there and has no pattern, as in every agent: each line of noise went through all formats."""
    counting = Noting()
    LogParser([counting, create("logs", "regex")]).feed(b"read shard-3 in 0.1 s\nfirst step\n")
    assert counting.lines == ["first step"]


def test_beside_the_user_s_patterns_other_formats_still_see_their_own_lines_alone() -> None:
    module = load("logs", "regex")
    mine = module.create(module.Options(patterns=(r"shard-(?P<step>\d+)",)))
    counting = Noting()
    parser = LogParser([counting, create("logs", "regex")], {"mine": mine})
    found = parser.feed(b"read shard-3 in 0.1 s\nfirst step\nnothing\n")
    assert [one.step for one in found] == [3]
    assert counting.lines == ["first step"]


def test_lines_that_take_long_leave_out_those_behind_them() -> None:
    """Anybody may write them, and the main loop reads all logs; what comes later is read again."""
    now = [0.0]

    class Slow:
        generic, signs = False, ()

        def parse(self, line: str) -> LogRecord | None:
            now[0] += MOST_SECONDS / 4 if line == "slow" else 0.0
            return LogRecord(step=int(line[5:]), format="x") if line.startswith("step ") else None

    it = LogParser([Slow()], used=lambda: now[0])
    quick = "".join(f"step {number}\n" for number in range(100)).encode()
    assert len(it.feed(quick)) == 100
    assert not it.skipped
    assert not it.feed(b"slow\n" * 100 + b"step 7\n")
    assert it.skipped > 300
    assert now[0] <= 2 * MOST_SECONDS
    assert [record.step for record in it.feed(b"step 8\n")] == [8]


WORST = {
    "rich": "Epoch 4 --------------- ---- " + "-" * 2000 + "STEP/291 0:00:33",
    "tqdm": "/900 [00:12<00:00, " + "1% " * 1300 + "1.33it/s, act_loss=0.01]",
    "a dict": "/900 <" + "1%" * 7000 + "{'iteration': 'a}",
    "a counter": "total step 1/1 " + "--" * 8000 + "epoch[ 1 of 1]-minibatch[ -1- ",
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_lines_cost_little(name: str) -> None:
    """A quarter of a second for so many bytes, and what the next few lines take; half a MiB of the first kind took half a minute."""
    lines, before = (WORST[name] + "\n") * ((128 << 10) // len(WORST[name])), time.thread_time()
    parser().feed(lines.encode())
    assert time.thread_time() - before < 2
