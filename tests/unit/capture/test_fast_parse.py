"""Old calls that are done are cut out of a dump before it is unpickled; what it tells stays the same."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.capture.flight_recorder.dump import KEEP, USUAL, _record, parse_dump
from mldebug.capture.flight_recorder.fast_parse import cut_pickle
from mldebug.core.model import FlightRecord
from shared.capture.dumps import FRAMES, Dump, as_json, as_torch, calls, dump, made, transfer

HALF = KEEP // 2
H200 = Path(__file__).parents[2] / "fixtures" / "h200"
RECORDED = sorted(H200.glob("hang-*/flight-recorder-rank*.pickle"))


def whole(data: bytes) -> FlightRecord:
    """The record of all calls."""
    return _record(json.loads(data) if data[:1] == b"{" else pickle.loads(data), USUAL)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem[-1]}")
def test_a_recording_tells_the_same_from_a_quarter_of_it(path: Path) -> None:
    data = path.read_bytes()
    assert len(cut_pickle(data, HALF)) < len(data) / 4
    assert parse_dump(data) == whole(data)


def test_the_bytes_are_those_of_pytorch() -> None:
    """What the other tests and the benchmark make is what a real dump is made of, up to the last frame, which is met once."""
    data = RECORDED[0].read_bytes()
    ours = as_torch(pickle.loads(data))
    same = len(data) - 1000
    assert ours[:same] == data[:same]
    assert pickle.loads(ours) == pickle.loads(data)


STATES = st.sampled_from(["completed"] * 6 + ["started", "scheduled", None])
CALL = st.tuples(
    st.sampled_from(["0", "dp", "tp"]), STATES, st.booleans(),
    st.sampled_from(["nccl", "nccl", "gloo"]), st.sampled_from(["all_reduce", "all_reduce", "coalesced", "send"]),
)  # fmt: skip


SPELLINGS: dict[str, Callable[[Dump], bytes]] = {
    "PyTorch's pickle": as_torch,
    "protocol 2": lambda one: pickle.dumps(one, 2),
    "protocol 4": lambda one: pickle.dumps(one, 4),
    "JSON": as_json,
}


def entry(number: int, what: tuple[str, str | None, bool, str, str]) -> Dump:
    group, state, retired, backend, op = what
    if op == "send":
        return transfer("send", 0, 1, number, state=state, retired=retired)
    return made(op, number, group=group, backend=backend, state=state or "") | {
        "state": state, "retired": retired
    }  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@settings(max_examples=40, deadline=None)
@given(rest=st.lists(CALL, max_size=12), burst=st.integers(0, 400), few=st.lists(CALL, max_size=12))
def test_whatever_is_open_what_a_dump_tells_stays_the_same(
    rest: list[tuple[str, str | None, bool, str, str]],
    burst: int,
    few: list[tuple[str, str | None, bool, str, str]],
    spelling: str,
) -> None:
    made_ = [entry(number, one) for number, one in enumerate(rest, 1)]
    made_ += calls(burst + 20, first=20)
    made_ += [entry(number, one) for number, one in enumerate(few, burst + 21)]
    data = SPELLINGS[spelling](dump(made_, {"0": range(4), "dp": range(4), "tp": (0, 1)}))
    assert parse_dump(data) == whole(data)


def fresh(number: int, backend: str) -> Dump:
    """As Python writes a call whose texts and frames are objects of its own; every third has another operation."""
    one = made(("all_reduce", "broadcast", "reduce")[number % 3], number, backend=backend)
    return (
        one
        | {"frames": [dict(frame) for frame in FRAMES]}
        | ({"state": "scheduled", "retired": number < 2000} if backend == "gloo" else {})
    )


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_full_recorder_is_not_read_whole(
    spelling: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = SPELLINGS[spelling](dump([fresh(number, backend) for number in range(1, 2001)]))
    expected = whole(data)

    def refuse(*_: object) -> object:
        raise AssertionError("all of it was read")

    monkeypatch.setattr("mldebug.capture.flight_recorder.dump.load_plain", refuse)
    assert parse_dump(data) == expected


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_refers_to_a_call_that_was_cut_out_is_read_whole(protocol: int) -> None:
    """An object that Python met first in an old call, and a late one shares with it."""
    sizes = [[4096]]
    odd = {number: {"input_sizes": sizes} for number in (40, 1999)}
    data = pickle.dumps(
        dump([made("all_reduce", n, **odd.get(n, {})) for n in range(1, 2001)]), protocol
    )
    assert parse_dump(data) == whole(data)
    assert [one.elements for one in parse_dump(data).groups[0].calls[-2:]] == [4096, 16]


@pytest.mark.parametrize("state", ["scheduled", "completed"])
def test_the_newest_that_is_done_is_kept_however_many_wait_after_it(state: str) -> None:
    """It tells that those before it are done, too, which NCCL itself does not say of a batch."""
    batch = [made("all_reduce", n, state="scheduled") for n in range(1, 40)]
    open_ = [made("all_reduce", n, state=state) for n in range(200, 500)]
    data = as_torch(dump([*batch, *calls(199, first=40), *open_]))
    assert len(cut_pickle(data, HALF)) < len(data)
    assert parse_dump(data).groups[0].completed == (199 if state == "scheduled" else 499)


def test_a_frame_that_later_calls_refer_to_is_kept() -> None:
    """It stands in an old call, and has no text that is not known already: a function that calls from another line."""
    other = FRAMES[1] | {"line": 22}
    old = [*calls(50), made("all_reduce", 51, frames=[other])]
    data = as_torch(
        dump(
            [*old, *calls(300, first=52), made("all_reduce", 301, state="started", frames=[other])]
        )
    )
    assert parse_dump(data) == whole(data)


@pytest.mark.parametrize(
    "data",
    [
        as_torch(dump(calls(30))),
        as_torch(dump(calls(300)))[:9000],
        b"",
    ],
)
def test_what_is_written_otherwise_is_left_as_it_is(data: bytes) -> None:
    assert cut_pickle(data, HALF) == data
