"""Whatever lies in a dump or in an answer of NCCL RAS: it is read, or refused with a reason, and what was read can be judged."""

import json
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.capture.flight_recorder.analysis import KINDS, analyse
from mldebug.capture.flight_recorder.dump import parse_dump
from mldebug.capture.nccl_ras.answer import parse
from mldebug.core.model import FlightRecord, NcclRas
from shared.capture.dumps import (
    Dump,
    as_json,
    as_torch,
    calls,
    dump,
    late,
    made,
    odd_size,
    transfer,
)
from shared.diagnosis.fieldcases import FIELD

PAIRS = {"0": range(4), "pp": (1, 2)}
MIXED = dump(
    [*calls(3), transfer("recv", 1, 0), made("all_to_all", 9, group="pp", state="scheduled")], PAIRS
) | {"pg_status": {"0": {"last_enqueued_collective": 3, "last_completed_collective": 3}}}
WHOLE: list[Dump] = [late(2)[0], odd_size(0)[0], MIXED]
ODD: list[object] = [
    None, True, -1, 0, 2**31, 2**63, 2**64, 10**40, -(2**70), 1.5, float("inf"), "", "0", "x" * 500, "[0, 1", "\ud800", "é",
    [], [[]], [0] * 3, ["all_reduce"], {}, {"0": 1}, (1, 2, 3),
]  # fmt: skip
FORMS: dict[str, Callable[[Any], bytes]] = {
    "pickle": lambda one: pickle.dumps(one, 2),
    "pickle 4": lambda one: pickle.dumps(one, 4),
    "json": lambda one: json.dumps(one).encode(),
}


def read(data: bytes) -> FlightRecord | None:
    try:
        return parse_dump(data)
    except ValueError:
        return None


def judge(*records: FlightRecord | None) -> None:
    found = analyse({rank: one for rank, one in enumerate(records) if one is not None})
    assert found.kind in KINDS
    assert len(found.culprits) <= 4


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a dump."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    return [path, *(one for key, inner in items for one in places(inner, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], put: object) -> Any:
    """A copy with something else at one place."""
    if not path:
        return put
    key, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {
            name: changed(one, rest, put) if name == key else one for name, one in value.items()
        }
    return [changed(one, rest, put) if n == key else one for n, one in enumerate(value)]


@settings(max_examples=300, deadline=None)
@given(
    whole=st.sampled_from(WHOLE),
    form=st.sampled_from(sorted(FORMS)),
    put=st.sampled_from(ODD),
    times=st.integers(1, 3),
    chance=st.randoms(use_true_random=False),
)
def test_a_value_of_another_kind_anywhere(
    whole: Dump, form: str, put: object, times: int, chance: random.Random
) -> None:
    one: Any = whole
    for _ in range(times):
        one = changed(one, chance.choice(places(one)), put)
    judge(read(FORMS[form](one)), parse_dump(pickle.dumps(whole, 2)), None, read(FORMS[form](one)))


@settings(max_examples=200, deadline=None)
@given(
    data=st.sampled_from([form(one) for one in WHOLE for form in (as_json, as_torch)]),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=4),
)
def test_bytes_that_are_cut_or_wrong(
    data: bytes, cut: float, flips: list[tuple[float, int]]
) -> None:
    raw = bytearray(data[: int(len(data) * cut) + 1])
    for place, value in flips:
        raw[int(place * len(raw))] = value
    judge(read(bytes(raw)), read(data))


ANSWERS = [path.read_bytes() for path in sorted((FIELD / "flight").glob("ras-*.txt"))]


@settings(max_examples=200, deadline=None)
@given(
    data=st.sampled_from(ANSWERS),
    put=st.sampled_from(["-1", "99999999999999999999", "x", "", "٣", "NOCOMM", "\x00"]),
    chance=st.randoms(use_true_random=False),
)
def test_an_answer_with_another_word_anywhere(data: bytes, put: str, chance: random.Random) -> None:
    words = data.decode().split(" ")
    words[chance.randrange(len(words))] = put
    lines = " ".join(words).split("\n")
    del lines[chance.randrange(len(lines))]
    with suppress(ValueError):
        assert isinstance(parse("\n".join(lines).encode()), NcclRas)


@pytest.mark.parametrize("data", [b"[]", b"[1]", b'[{"profiling_name": 3}]', pickle.dumps([{}], 2)])
def test_a_list_that_is_none_of_calls_is_refused(data: bytes) -> None:
    found = read(data)
    assert found is None or not found.groups


@pytest.mark.parametrize(
    "without", ["collective_seq_id", "process_group", "state", "profiling_name"]
)
@pytest.mark.parametrize("put", [None, "left out"])
def test_a_dump_whose_calls_do_not_say_which_they_are_accuses_nobody(
    without: str, put: object
) -> None:
    """The rank may have called everything: what its dump does not tell is no proof."""
    odd = dump(calls(3))
    for call in odd["entries"]:
        call |= {"retired": False, without: None}
        if put is not None:
            del call[without]
    records = {rank: parse_dump(pickle.dumps(one, 2)) for rank, one in (late(2) | {2: odd}).items()}
    found = analyse(records)

    assert (found.kind, found.culprits) == ("unknown", ())
    assert "the dump of rank 2 holds calls without" in found.explanation


def test_a_dump_that_says_it_accuses_its_rank() -> None:
    """Control: the same calls with all that tells which they are."""
    records = {rank: parse_dump(pickle.dumps(one, 2)) for rank, one in late(2).items()}

    assert analyse(records).culprits == (2,)


def test_a_dump_that_is_there_and_unreadable_is_none_that_is_missing() -> None:
    records = {rank: parse_dump(pickle.dumps(one, 2)) for rank, one in late(2).items() if rank != 2}

    assert analyse(records).kind == "no_dump"
    found = analyse(records, {2: "it was cut off"})
    assert (found.kind, found.culprits) == ("unknown", ())
    assert "the dump of rank 2 is there and cannot be used (it was cut off)" in found.explanation


def test_nobody_waits_beside_a_dump_that_is_unreadable() -> None:
    records = {rank: parse_dump(pickle.dumps(dump(calls(3)), 2)) for rank in range(3)}

    assert "that of rank 3 cannot be used" in analyse(records, {3: "cut off"}).explanation
    assert "there is none of rank 3" in analyse(records).explanation


def test_one_rank_is_in_a_transfer_and_not_are() -> None:
    ends = {0: dump([transfer("send", 0, 1)], {"0": range(2)}), 1: dump([transfer("recv", 1, 0)], {"0": range(2)})}  # fmt: skip
    records = {rank: parse_dump(pickle.dumps(one, 2)) for rank, one in ends.items()}

    assert analyse(records).explanation.startswith("Rank 0 is in send 1 to rank 1")
