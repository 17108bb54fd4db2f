"""Ends in which the first to end, or the last words, prove nothing: nobody is named above `low` there, and who is to blame is still named."""

import json
from pathlib import Path
from typing import Any

import pytest

from mldebug.core.model import Confidence
from shared.diagnosis.fieldexits import outcome_of

VICTIM = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 88, in train_step\n    loss.backward()\n'
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error\n"
    "Last error:\nsocketProgressOpt: Call to recv from 10.1.0.3<33759> failed : Connection reset by peer"
)
OWN = 'Traceback (most recent call last):\n  File "/job/train.py", line 41, in load\n    raise ValueError(name)\n'
ASIDE = {
    "a destructor": "Exception ignored in: <function Iterator.__del__ at 0x7f>\n" + OWN + "AssertionError: can only test a child process",
    "an exit handler": "Error in atexit._run_exitfuncs:\n" + OWN + "ValueError: I/O operation on closed file.",
    "a thread": "Exception in thread Thread-3 (_loop):\n" + OWN + "OSError: [Errno 9] Bad file descriptor",
}  # fmt: skip


def named(folder: Path, ranks: dict[str, list[Any]]) -> tuple[list[int | None], Confidence | None]:
    plan = folder / "it.plan.json"
    plan.write_text(json.dumps({"ranks": ranks}))
    found = outcome_of(plan, 4).finding
    return ([it.rank for it in found.culprits], found.confidence) if found else ([], None)


def marked(rank: int, text: str) -> str:
    return "\n".join(f"[rank{rank}]: {line}" for line in text.split("\n"))


def sure(folder: Path, ranks: dict[str, list[Any]]) -> list[int | None]:
    who, confidence = named(folder, ranks)
    return who if confidence in (Confidence.HIGH, Confidence.MEDIUM) else []


@pytest.mark.parametrize("beside", ASIDE)
def test_what_python_prints_beside_an_end_is_not_its_reason(beside: str, tmp_path: Path) -> None:
    ranks: dict[str, list[Any]] = {"1": [{"sleep": 8}, marked(1, f"{VICTIM}\n{ASIDE[beside]}"), {"exit": 1}], "*": [{"sleep": 8}]}  # fmt: skip
    assert sure(tmp_path, ranks) == []
    ranks["1"][1] = marked(1, f"{OWN}ValueError: bad shard 7\n{ASIDE[beside]}")
    assert sure(tmp_path, ranks) == [1]


@pytest.mark.parametrize("first", [1, 2])
def test_two_own_errors_at_the_same_time_name_nobody_surely(first: int, tmp_path: Path) -> None:
    error = {1: "ValueError: bad shard 7", 2: "KeyError: 'input_ids'"}
    for gap, expected in ((0.2, []), (4.0, [first])):
        ranks: dict[str, list[Any]] = {
            str(rank): [{"sleep": 8 + (gap if rank != first else 0)}, marked(rank, OWN + text), {"exit": 1}]
            for rank, text in error.items()
        }  # fmt: skip
        assert sure(tmp_path, ranks | {"*": [{"sleep": 9}]}) == expected


def test_errors_that_differ_in_a_path_are_alike(tmp_path: Path) -> None:
    ranks: dict[str, list[Any]] = {
        str(rank): [{"sleep": 8 + rank * 3}, marked(rank, f"{OWN}OSError: cannot write /tmp/tmp{name}/x"), {"exit": 1}]
        for rank, name in enumerate(("ab", "cd", "ef", "gh"))
    }  # fmt: skip
    assert sure(tmp_path, ranks) == []


@pytest.mark.parametrize(
    "words",
    [
        "EOFError", "ConnectionResetError: [Errno 104] Connection reset by peer", "RuntimeError: connect() timed out. Original timeout was 1800000 ms.",
        "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.", "mpi4py.MPI.Exception: MPI_ERR_OTHER: known error not in list",
        "RuntimeError: eof (this error originated at tensorpipe/transport/uv/connection_impl.cc:132)", "TimeoutError: Rank 1: no message from rank 3 in 600 s",
    ],
)  # fmt: skip
def test_words_of_who_waited_in_vain_name_nobody_surely(words: str, tmp_path: Path) -> None:
    ranks: dict[str, list[Any]] = {"1": [{"sleep": 8}, marked(1, OWN + words), {"exit": 1}], "*": [{"sleep": 8}]}  # fmt: skip
    assert sure(tmp_path, ranks) == []


@pytest.mark.parametrize("words", ["ValueError: peer table of shard 7 has 12 rows", "KeyError: 'timeout'", "AssertionError: rank 3 of the tensor is 2", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"])  # fmt: skip
def test_own_errors_are_named_whatever_words_they_have(words: str, tmp_path: Path) -> None:
    ranks: dict[str, list[Any]] = {"1": [{"sleep": 8}, marked(1, OWN + words), {"exit": 1}], "*": [{"sleep": 8}]}  # fmt: skip
    assert sure(tmp_path, ranks) == [1]


def test_who_is_killed_after_another_has_failed_did_not_begin_it(tmp_path: Path) -> None:
    """A launcher kills what does not end when it is asked to; who is killed first is the one to look at."""
    late: dict[str, list[Any]] = {"0": [{"sleep": 8}, marked(0, VICTIM), {"exit": 1}], "1": [{"sleep": 38}, {"signal": 9}], "*": [{"sleep": 8.2}]}  # fmt: skip
    assert sure(tmp_path, late) == []
    early: dict[str, list[Any]] = {"0": [{"sleep": 9}, marked(0, VICTIM), {"exit": 1}], "1": [{"sleep": 8}, {"signal": 9}], "*": [{"sleep": 12}]}  # fmt: skip
    assert sure(tmp_path, early) == [1]


@pytest.mark.parametrize("first", [1, 2])
def test_two_that_are_killed_at_nearly_the_same_time_name_nobody_surely(
    first: int, tmp_path: Path
) -> None:
    """Who kills several kills them in any order; one that is killed alone is the one to look at."""
    for gap, expected in ((0.05, []), (0.6, []), (4.0, [first])):
        ranks: dict[str, list[Any]] = {
            str(rank): [{"sleep": 8 + (gap if rank != first else 0)}, {"signal": 9}]
            for rank in (1, 2)
        }
        assert sure(tmp_path, ranks | {"*": [{"sleep": 12.5}, {"signal": 15}]}) == expected
    alone: dict[str, list[Any]] = {"1": [{"sleep": 8}, {"signal": 9}]}
    assert sure(tmp_path, alone | {"*": [{"sleep": 8.2}, {"signal": 15}]}) == [1]
