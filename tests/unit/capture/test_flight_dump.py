"""Raw dumps of PyTorch: every spelling gives one record, and a hostile file does nothing but be refused."""

import contextlib
import json
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.capture.flight_recorder.dump import KEEP, MAX_BYTES, limits_of_living_job, parse_dump
from mldebug.capture.flight_recorder.safe_load import CUT, MAX_TUPLES, load_plain
from shared.capture.dumps import as_json, calls, dump, made, transfer

H200 = Path(__file__).parents[2] / "fixtures" / "h200"
ONE = dump([*calls(3), made("all_reduce", 4, state="started")])


def recorded(hang: str, rank: int) -> bytes:
    return (H200 / f"hang-{hang}" / f"flight-recorder-rank{rank}.pickle").read_bytes()


# --- what a dump tells -----------------------------------------------------------------------------


def test_a_recording_of_nccl() -> None:
    (group,) = parse_dump(recorded("desync", 1)).groups
    assert (group.name, group.backend, group.members) == ("0", "nccl", "0-1")
    assert (group.enqueued, group.completed) == (28807, 28806)
    last = group.calls[-1]
    assert (last.op, last.state, last.done, last.elements) == (
        "broadcast",
        "scheduled",
        False,
        1024,
    )
    assert [one.label for one in last.frames[-2:]] == [
        "evaluate (train.py:8)",
        "<module> (train.py:20)",
    ]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_protocols_of_python(protocol: int) -> None:
    """Who reads a dump and writes it again has another protocol."""
    assert parse_dump(pickle.dumps(ONE, protocol)) == parse_dump(pickle.dumps(ONE, 2))


@pytest.mark.parametrize("version", ["2.4", "2.9", "2.10"])
def test_versions(version: str) -> None:
    found = parse_dump(pickle.dumps(ONE | {"version": version}, 2))
    assert (found.version, found.groups[0].enqueued) == (version, 4)


def test_json_tells_the_same_but_for_frames() -> None:
    def bare(data: bytes) -> Any:
        (group,) = parse_dump(data).groups
        return [
            (c.op, c.sequence, c.done, c.state, c.created_at) for c in group.calls
        ], group.members

    assert bare(as_json(ONE)) == bare(pickle.dumps(ONE, 2))


def test_many_calls_are_bounded_and_the_oldest_pending_one_is_kept() -> None:
    entries = [*calls(10), *(made("all_reduce", n, state="scheduled") for n in range(11, 2001))]
    (group,) = parse_dump(pickle.dumps(dump(entries), 2)).groups
    assert (group.enqueued, group.completed, len(group.calls)) == (2000, 10, KEEP)
    assert next(one.sequence for one in group.calls if not one.done) == 11


def test_what_nccl_left_open_is_done_if_a_later_call_is() -> None:
    entries = [*calls(3), made("all_reduce", 4, state="scheduled"), made("all_reduce", 5)]
    assert parse_dump(pickle.dumps(dump(entries), 2)).groups[0].completed == 5


def test_a_receive_that_is_not_met() -> None:
    (one,) = parse_dump(pickle.dumps(dump([transfer("recv", 3, 2)]), 2)).transfers
    assert (one.op, one.peer, one.group, one.members, one.sequence) == ("recv", 2, "0", "0-3", 1)


def test_an_idle_process_has_no_entries() -> None:
    idle = dump([]) | {"pg_config": {}}
    del idle["entries"]
    assert parse_dump(pickle.dumps(idle, 2)).groups == ()


def test_the_members_of_a_living_job_s_groups_are_few_enough_to_be_unfolded() -> None:
    """The agent's own thread unfolds them when it judges: many large groups that all differ would hold it up."""
    wide = pickle.dumps(dump(calls(3), {str(n): range(n, 4000) for n in range(40)}), 2)
    assert parse_dump(wide).groups
    with pytest.raises(ValueError, match="too many members"):
        parse_dump(wide, limits_of_living_job(4000))
    usual = {
        "0": range(4000),
        "1": range(4000),
        **{f"tp{n}": range(8 * n, 8 * n + 8) for n in range(9)},
    }
    assert parse_dump(pickle.dumps(dump(calls(3), usual), 2), limits_of_living_job(4000)).groups


@pytest.mark.parametrize("world", [3, 5, 8])
def test_a_dump_of_a_job_of_another_size_is_none_of_this_job(world: int) -> None:
    one = pickle.dumps(dump(calls(3), {"0": range(4), "1": range(2)}), 2)
    assert parse_dump(one, limits_of_living_job(4)).groups
    with pytest.raises(ValueError, match=r"of a job with (4 ranks and not|more than 3 ranks)"):
        parse_dump(one, limits_of_living_job(world))


# --- what is refused -------------------------------------------------------------------------------


class Command:
    """A pickle that would run a program."""

    def __reduce__(self) -> Any:
        return os.system, ("echo harm > harmed",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_a_program_runs_none(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(ONE | {"entries": [Command()]}, protocol)
    with pytest.raises(ValueError, match=r"asks for a class|neither a pickle"):
        parse_dump(data)
    assert not list(tmp_path.iterdir())


def test_every_cut_is_told_as_one() -> None:
    data = pickle.dumps(ONE, 2)
    for end in range(1, len(data)):
        with pytest.raises(ValueError) as raised:
            parse_dump(data[:end])
        assert str(raised.value) == CUT, end


@pytest.mark.parametrize("end", [1, 200, -1])
def test_cut_json(end: int) -> None:
    with pytest.raises(ValueError, match=CUT):
        parse_dump(as_json(ONE)[:end])


BOMBS = {
    "memo": b"\x80\x02}r\xff\xff\xff\x7f" + b"N" * 20 + b".",
    "bytes": b"\x80\x02\x8e" + b"\xff" * 8 + b"." * 20,
    "bytearray": b"\x80\x05\x96" + b"\xff" * 7 + b"\x00." * 10,
    "text": b"\x80\x02X\xff\xff\xff\xff" + b"." * 20,
    "long text": b"\x80\x04\x8d" + b"\xff" * 8 + b"." * 20,
    "long number": b"\x80\x02\x8b\xff\xff\xff\x7f" + b"." * 20,
    "lists": b"\x80\x02(" + b"]" * 5_000_000 + b"l.",
    "json lists": b"[" + b"[]," * 5_000_000 + b"[]]",
    "deep json": b"[" * 100_000 + b"]" * 100_000,
    "deep key": b"\x80\x02})" + b"\x85" * (MAX_TUPLES + 1) + b"Ns.",
    "shared lists": b"\x80\x02]q\x01(" + b"h\x01h\x01" * 1000 + b"e.",
    "out of order": b"\x80\x02eeesut.",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_no_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            parse_dump(BOMBS[name])
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_key_as_deep_as_may_be_overflows_nothing() -> None:
    with pytest.raises(ValueError, match="malformed"):
        parse_dump(b"\x80\x02})" + b"\x85" * (MAX_TUPLES - 10) + b"Ns.")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"entries": 5}, "no list of calls"),
        ({"entries": [5]}, "no list of calls"),
        ({"entries": [{"record_id": "x"}]}, "not what it should be"),
        ({"entries": [made("all_reduce", 2**60, at=1, state="started")]}, "not what it should be"),
        ({"entries": [made("all_reduce", 1, input_sizes=[[1]] * 300_000)]}, "tensors"),
    ],
)
def test_other_shapes_are_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_dump(pickle.dumps(ONE | change, 2))


@pytest.mark.parametrize("data", [b"", b"hello", b"{}", b"[]", pickle.dumps([1], 2), b"\x80\x02N."])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_dump(data)


def test_a_large_file_is_not_looked_at() -> None:
    with pytest.raises(ValueError, match="more than"):
        parse_dump(bytes(MAX_BYTES + 1))


def test_names_are_cleaned() -> None:
    evil = made("all_reduce", 1, process_group=("0", "\x1b[31mred\n"), state="started")
    difference = dump([evil]) | {"pg_config": {}}
    assert parse_dump(pickle.dumps(difference, 2)).groups[0].description == "red"


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda some: (
        st.lists(some, max_size=5)
        | st.tuples(some, some)
        | st.dictionaries(st.text(max_size=9), some, max_size=5)
    ),
    max_leaves=30,
)


@settings(max_examples=100, deadline=None)
@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_values_come_back(value: object, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == _with_lists(value)


def _with_lists(value: Any) -> Any:
    """The value with a list in place of each tuple."""
    if isinstance(value, dict):
        return {name: _with_lists(one) for name, one in value.items()}
    return list(map(_with_lists, value)) if isinstance(value, list | tuple) else value


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_one_wrong_byte_is_an_answer_or_a_reason(at: int, byte: int) -> None:
    data = bytearray(pickle.dumps(ONE, 2))
    data[at % len(data)] = byte
    with contextlib.suppress(ValueError):
        parse_dump(bytes(data))


def test_the_json_of_a_dump_is_json() -> None:
    assert json.loads(as_json(ONE))["entries"][0]["time_discovered_started_ns"] == 0
