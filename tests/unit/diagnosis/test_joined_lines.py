"""Lines of two ranks that were written into one, and logs whose names hold a number that is none of a rank."""

import pytest

from mldebug.capture.stacks.numbering import place_of
from mldebug.diagnosis.exits.words.marks import take_apart
from mldebug.diagnosis.exits.words.recorded.last_attempt import RecordedLog
from mldebug.diagnosis.exits.words.recorded.recorded_logs import end_of_logs

HEAD = "Traceback (most recent call last):"
FRAME = '  File "/job/train.py", line 30, in train'
LOST = (
    "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:31337"
)


@pytest.mark.parametrize(
    "line",
    [f"[rank1]: {HEAD}[rank0]: {HEAD}", f"[rank1]: {HEAD}[rank0]:{HEAD}", "[rank1]: loss 2.1[rank0]: loss 2.2", "[rank1]: in step()[rank0]: x",
     *(f"{before}[rank1]: {HEAD}[rank0]: {HEAD}" for before in ("> ", "gpu-node-3: ", "2026-06-15T03:11:09Z ", "(RayTrainWorker pid=4411, ip=10.0.0.3) "))],
)  # fmt: skip
def test_each_rank_gets_its_own(line: str) -> None:
    assert set(take_apart([line], {}).by_rank) == {0, 1}


@pytest.mark.parametrize(
    "line",
    ["[rank1]: ValueError: got '[rank0]: x'", "[rank1]: worker output: [rank0]: Traceback", "[rank1]:[rank1]: x", "loss 2.1 of [rank0]: x"],
)  # fmt: skip
def test_what_is_quoted_stays_in_its_line(line: str) -> None:
    """A control: a blank or a quotation mark before it, the same rank, or no mark at the beginning."""
    assert len(take_apart([line], {}).every) == 1


def test_the_first_of_two_heads_begins_the_first_ranks_traceback() -> None:
    lines = [f"[rank1]: {HEAD}[rank0]: {HEAD}", f"[rank1]: {FRAME}", "[rank1]:     a = rows[7]", "[rank1]: IndexError: list index out of range", f"[rank0]: {FRAME}", "[rank0]:     sync()", f"[rank0]: {LOST}"]  # fmt: skip
    end = end_of_logs([RecordedLog(name="job.log", lines=lines, rank=None)])
    assert end is not None
    assert {rank: one.blames_peer for rank, one in end.errors.items()} == {0: True, 1: False}


@pytest.mark.parametrize("width", [72, 80, 120])
def test_what_a_terminal_has_broken_is_one_line_again(width: int) -> None:
    """Whose failure an error is stands behind its first columns."""
    whole = [f"[rank{rank}]: {line}" for rank in range(2) for line in (HEAD, FRAME.replace("/job", "/workspace/very/long/folder/of/a/job/of/somebody"), LOST)]  # fmt: skip
    lines = [line[at : at + width] for line in whole for at in range(0, len(line), width)]
    assert take_apart(lines, {}).by_rank == take_apart(whole, {}).by_rank


def test_the_longest_lines_of_two_ranks_swallow_nothing() -> None:
    """A control: they are alike, and no terminal's width."""
    lines = [f"[rank0]: {LOST}", f"[rank1]: {LOST}", "W0615 closing"]
    assert take_apart(lines, {}).shared == ("W0615 closing",)


@pytest.mark.parametrize(
    "name", ["node_rank3.log", "node-rank-3.log", "train.group_rank3.out", "machine_rank_3.txt"]
)
def test_the_number_of_a_node_is_no_rank(name: str) -> None:
    assert place_of(name).says == "node"


@pytest.mark.parametrize("name", ["rank3.log", "global_rank3.log", "n1-rank_3.err"])
def test_a_rank_in_a_name_is_one(name: str) -> None:
    assert place_of(name).says == "rank"
    assert place_of(name).number == 3


def test_marks_of_several_ranks_outweigh_the_name_of_their_log() -> None:
    lines = [f"[rank0]: {HEAD}", f"[rank0]: {FRAME}", "[rank0]:     a = rows[7]", "[rank0]: IndexError: list index out of range"]  # fmt: skip
    for rank in (1, 2):
        lines += [f"[rank{rank}]: {one}" for one in (HEAD, FRAME, "    sync()", LOST)]
    end = end_of_logs([RecordedLog(name="own-rank3-test.log", lines=lines, rank=3)])
    assert end is not None
    assert {rank: one.blames_peer for rank, one in end.errors.items()} == {0: False, 1: True, 2: True}  # fmt: skip


def test_one_other_mark_may_be_quoted() -> None:
    """A control: a log of one rank, in which it writes what another one said."""
    lines = [HEAD, FRAME, "    a = rows[7]", "IndexError: list index out of range", "[rank2]: bye"]
    end = end_of_logs([RecordedLog(name="rank3.log", lines=lines, rank=3)])
    assert end is not None
    assert 3 in end.errors
