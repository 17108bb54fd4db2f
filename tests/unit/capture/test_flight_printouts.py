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
