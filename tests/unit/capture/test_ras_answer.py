"""Answers of NCCL RAS: both forms, the comma that is missing, and everything that a job may write instead."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.capture.nccl_ras import answer as parsing
from mldebug.capture.nccl_ras.answer import parse
from mldebug.capture.nccl_ras.communicators import MAX_NAMED, few
from mldebug.core.model import NcclAbsent, NcclLevel
from shared.capture.rasserver import HOST, answer, recorded, recorded_text

GOOD = [
    value for name in ("sleep", "loop", "stop") for _, value in recorded(name) if value[:1] == "{"
]
REFUSED = [
    (b"", "it is empty"),
    (b" \n", "it is empty"),
    (b"{", "truncated"),
    (b"[1]", "names no version"),
    (b"HTTP/1.1 400 Bad Request\r\n", "names no version"),
    (b'{"communicators": []}', "nccl_version"),
    (b'{"nccl_version": "2.28.9", "communicators": {}}', "Expected `array`"),
    (b'{"nccl_version": "2.28.9", "communicators": [{"hash": "0x1", "size": -9}]}', "size"),
    (b"{" * 100_000, "no answer"),
    (b"NCCL version 2.24.3 compiled with CUDA 12.4\n", "its end is missing"),
]


def test_every_recorded_answer_is_read() -> None:
    assert len(GOOD) > 30
    for item in GOOD:
        found = parse(item.encode())
        assert (found.version, found.form, found.communicators[0].size) == ("2.28.9", "json", 2)


def test_an_answer_without_the_comma_of_2_28_9() -> None:
    """As recorded with one stopped rank of two."""
    first = next(value for _, value in recorded("stop") if '"unresponsive": true' in value)
    with pytest.raises(json.JSONDecodeError):
        json.loads(first)

    one = parse(first.encode()).communicators[0]

    gone = NcclAbsent(rank=1, host=HOST, pid=986, gpu=1, unresponsive=True)
    assert (one.absent, one.absent_count, one.answered) == ((gone,), 1, 1)
    assert one.ranks[0].counts == {"Broadcast": 7, "AllGather": 1, "AllReduce": 5539}


def test_levels_are_of_the_functions_that_differ() -> None:
    one = parse(recorded("sleep")[-1][1].encode()).communicators[0]
    assert one.levels == (
        NcclLevel(function="AllReduce", count=12718, ranks=1),
        NcclLevel(function="AllReduce", count=12743, ranks=1),
    )
    assert (one.launched, one.furthest) == (12718 + 12743 + 16, 12743 + 8)


def test_the_words_of_a_status() -> None:
    result = answer({n: {} for n in range(5)})
    states = [
        {},
        {"init_state": 7},
        {"async_error": 3},
        {"abort_flag": True, "async_error": 3},
        {"finalize_called": True},
    ]
    for row, state in zip(result["communicators"][0]["ranks"], states, strict=True):
        row["status"] = state
    words = [rank.status for rank in parse(json.dumps(result).encode()).communicators[0].ranks]
    assert words == ["running", "initializing", "error 3", "aborted", "finalized"]


def test_recorded_text() -> None:
    found = parse(recorded_text("desync")[1].encode())
    one = found.communicators[0]
    assert (found.version, found.form, one.key, one.size) == (
        *("2.28.9", "text"),
        *("0x14189ecdc6b8183c", 2),
    )
    assert [(rank.rank, rank.pid, rank.counts) for rank in one.ranks] == [
        (0, 860, {"Broadcast": 5, "AllReduce": 28801}),
        (1, 861, {"Broadcast": 6, "AllReduce": 28800}),
    ]
    assert one.launched is None, "equal counts are not told in this form"


TEXT = """NCCL version 2.24.3+cuda12.4 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Communicators... (5.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        30   RUNNING  INCOMPLETE,MISMATCH
    1         2         1         8         8        16   RUNNING  OK

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 12 on node 172.16.64.214 managing GPU 1

#0-0 (000000000000abcd) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 31 -- GPU 5 managed by process 3487984 on node 172.16.64.213

#0-0 (000000000000abcd) ERROR
  Asynchronous error on 1 rank

Warnings
========

#0-0 (000000000000abcd) MISMATCH
  Communicator ranks have different status
  29 ranks have status RUNNING
  Rank 4 has status ABORT -- GPU 4 managed by process 99 on node 172.16.64.211
  Rank 30 has status NOCOMM -- GPU 4 managed by process 98 on node 172.16.64.213

  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  3 ranks have launched up to operation 6649
  Rank 7 -- GPU 7 managed by process 77 on node 172.16.64.210
  Rank 8 -- [process information not found]
  Rank 9 -- GPU 1 (NVML 5) managed by process 78 on node 172.16.64.211
  Rank 0 has not launched any operations -- GPU 0 managed by process 70 on node 172.16.64.210

"""


def test_text_with_everything_in_it() -> None:
    found = parse(TEXT.encode())
    one = found.communicators[0]
    assert (one.size, one.answered, found.seconds) == (32, 30, 5.01)
    assert [(gone.rank, gone.pid, gone.unresponsive) for gone in one.absent] == [
        (30, 98, False),
        (31, 3487984, True),
    ]
    assert [(gone.pid, gone.dead) for gone in found.absent] == [(3487984, False), (12, True)]
    assert [(level.count, level.ranks) for level in one.levels] == [(0, 1), (6649, 3), (6650, 26)]
    assert {rank.rank: (rank.pid, rank.gpu, rank.counts, rank.status) for rank in one.ranks} == {
        0: (70, 0, {"AllReduce": 0}, ""),
        4: (99, 4, {}, "aborted"),
        7: (77, 7, {"AllReduce": 6649}, ""),
        8: (None, None, {"AllReduce": 6649}, ""),
        9: (78, 1, {"AllReduce": 6649}, ""),
    }


@pytest.mark.parametrize("cut", [len(TEXT) // 2, len(TEXT) - 40])
def test_text_that_is_cut(cut: int) -> None:
    with pytest.raises(ValueError, match="its end is missing"):
        parse(TEXT[:cut].encode())


@pytest.mark.parametrize(("data", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_is_no_answer_is_refused_in_words(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(data)


def test_too_many_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MAX_RANKS", 3)
    with pytest.raises(ValueError, match="1 communicators and 4 ranks"):
        parse(json.dumps(answer({n: {} for n in range(4)})).encode())


def test_names_are_cleaned() -> None:
    result = answer({0: {"AllReduce\x1b[31m": 3}}, host="evil\x1b[2J" + "x" * 300)
    rank = parse(json.dumps(result).encode()).communicators[0].ranks[0]
    assert "\x1b" not in rank.host + next(iter(rank.counts))
    assert len(rank.host) <= 64


def test_evidence_keeps_the_ranks_that_matter() -> None:
    counts = {n: {"AllReduce": 9 if n != 700 else 8} for n in range(1000)}
    missing = {n: {"unresponsive": True} for n in range(1000, 1100)}
    whole = parse(json.dumps(answer(counts, missing=missing)).encode())

    one = few(whole, {103, 104}).communicators[0]

    assert [rank.rank for rank in one.ranks] == [3, 4, 700]
    assert (len(one.absent), one.absent_count, one.answered) == (MAX_NAMED, 100, 1000)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.binary(min_size=1, max_size=4), st.sampled_from([GOOD[0], TEXT]))
def test_nothing_but_a_value_error(place: int, noise: bytes, whole: str) -> None:
    data = whole.encode()
    at = place * len(data) // 60
    with suppress(ValueError):
        parse(data[:at] + noise + data[at:])


def test_ranks_of_a_few_bytes_each_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MiB of them became 490 before they were counted."""
    monkeypatch.setattr(parsing, "MAX_OBJECTS", 20)
    ranks = b",".join([b'{"rank":1}'] * 30)
    whole = b'{"nccl_version":"2","communicators":[{"hash":"a","size":1,"ranks":[%b]}]}'
    with pytest.raises(ValueError, match="more than 20 objects"):
        parse(whole % ranks)
    assert parse(whole % b'{"rank":1}').communicators
