"""What a printout of PyTorch's analyser costs at most, whatever is in it."""

import time

import pytest

from mldebug.capture.flight_recorder.files import printouts
from mldebug.capture.flight_recorder.files.printouts import read_printout

CALL = "pg_name=0, pg_description=default_pg, collective_seq_id | p2p_seq_id=5, "


def table(inside: str) -> str:
    cell = f"all_reduce({inside} state=scheduled)"
    return f"Rank 0\n{'-' * len(cell)}\n{cell}\n"


def test_a_cell_of_sizes_that_never_end_is_read_in_time() -> None:
    began = time.process_time()
    (call,) = read_printout(table(CALL + "input_sizes=[" * 5000))[0]["entries"]
    assert (call["input_sizes"], time.process_time() - began < 1.0) == ([], True)
    (call,) = read_printout(table(f"{CALL}input_sizes=[[4, 8], [2]] output_sizes=[[2]]"))[0][
        "entries"
    ]
    assert (call["input_sizes"], call["output_sizes"]) == ([[4, 8], [2]], [[2]])


def test_a_printout_of_too_many_calls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printouts, "MAX_CALLS", 100)
    ranks = ", ".join(map(str, range(30)))
    block = f"Not all ranks joining collective: sequence number: 7\ngroup info: 0:default_pg\ncollective: nccl:all_reduce\nmissing ranks: {{1}}\nexpected ranks: {{{ranks}}}\n"
    assert len(read_printout(block)) == 30
    with pytest.raises(ValueError, match="more than 100 calls"):
        read_printout(block * 9)


def test_ranks_that_have_made_no_call_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings of a first call which all have missed: 32 MiB of them became 220 MiB, without one call."""
    monkeypatch.setattr(printouts, "MAX_CALLS", 100)
    ranks = ", ".join(map(str, range(30)))
    block = "Not all ranks joining collective: sequence number: 1\ngroup info: {}:default_pg\ncollective: nccl:all_reduce\nmissing ranks: {{{}}}\nexpected ranks: {{{}}}\n"
    assert len(read_printout(block.format(0, ranks, ranks))) == 30
    with pytest.raises(ValueError, match="more than 100 calls"):
        read_printout("".join(block.format(group, ranks, ranks) for group in range(9)))


def test_columns_that_no_line_reaches_cost_nothing() -> None:
    """A hundred KiB of five thousand columns and fifty thousand empty lines was looked at for a minute, one cell at a time."""
    text = "Rank 1" * 5000 + "\n" + "--- " * 5000 + "\n" * 50_000
    before = time.thread_time()
    assert read_printout(text)[1]["entries"] == []
    assert time.thread_time() - before < 1


def test_a_line_that_ends_within_a_column_is_read_up_to_there() -> None:
    cell = "all_reduce(pg_name=0, pg_description=default_pg, collective_seq_id | p2p_seq_id=7, state=started)"
    wide = "-" * len(cell)
    text = f"{'Rank 0':{len(cell)}} Rank 1\n{wide} {wide}\n{cell} {cell}\n{cell}\n"
    found = read_printout(text)
    assert [len(found[rank]["entries"]) for rank in (0, 1)] == [2, 1]
