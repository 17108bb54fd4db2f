"""One rank's Flight Recorder: what the hook writes is what the agent reads, and a hostile file is not believed."""

import io
import json
import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.capture.flight_recorder.hook_file import (
    MAX_BYTES,
    MAX_CALLS,
    MAX_GROUPS,
    parse_file,
)
from mldebug.capture.flight_recorder.votes import collective_words
from mldebug.jobs.heartbeat import parse_record
from mldebug_training.common.shared_files import start_ticks
from mldebug_training.hook import flight_recorder as written
from mldebug_training.hook.nccl_recording import NEW, OLD, record_collectives
from mldebug_training.hook.record import HookRecord

H200 = Path(__file__).parents[2] / "fixtures" / "h200"


class Plain(pickle.Unpickler):
    """Containers, text and numbers: all that such a dump holds."""

    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"{module}.{name} in a dump")


def recording(hang: str, rank: int) -> dict[str, Any]:
    """A dump of legacy NCCL, made by a real job."""
    data = (H200 / f"hang-{hang}" / f"flight-recorder-rank{rank}.pickle").read_bytes()
    dump: dict[str, Any] = Plain(io.BytesIO(data)).load()
    return dump


def file_of(*dumps: dict[str, Any], **groups: list[int]) -> bytes:
    """As the hook writes it, from dumps of PyTorch."""
    about = {name.lstrip("_"): {"desc": "default_pg", "ranks": one} for name, one in groups.items()}
    few = [written.condensed(dump) for dump in dumps]
    return json.dumps({"layout": 1, "rank": 0, "groups": about, "dumps": few}).encode()


def gloo(*entries: dict[str, Any], **status: Any) -> dict[str, Any]:
    """A dump as gloo makes it."""
    return {"version": "2.10", "entries": list(entries), "pg_status": status, "pg_config": {}}


def entry(number: int, *, retired: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number,
        "p2p_seq_id": 0, "is_p2p": False, "profiling_name": "gloo:all_reduce", "input_sizes": [[4, 8], [2]],
        "input_dtypes": ["Float", "Float"], "output_sizes": [[4, 8], [2]], "state": "scheduled",
        "retired": retired, "time_created_ns": 1_700_000_000 * 10**9 + number * 10**8, "timeout_ms": 1_800_000,
    } | more  # fmt: skip


# --- recordings ----------------------------------------------------------------------------------


def test_recorded_hang_in_different_collectives() -> None:
    """Legacy NCCL on two H200: the counts are numbers, missing times null."""
    first, second = (
        parse_file(file_of(recording("desync", rank), _0=[0, 1])).groups[0] for rank in (0, 1)
    )
    assert (first.name, first.backend, first.members) == ("0", "nccl", "0-1")
    assert first.enqueued == second.enqueued == first.completed + 1
    assert (first.calls[-1].op, second.calls[-1].op) == ("all_reduce", "broadcast")
    assert not first.calls[-1].done
    assert first.calls[-1].timeout == 600.0


def test_recorded_hang_of_a_rank_that_never_came() -> None:
    waiting, asleep = (parse_file(file_of(recording("sleep", rank), _0=[0, 1])) for rank in (0, 1))
    assert waiting.groups[0].enqueued > asleep.groups[0].enqueued == asleep.groups[0].completed
    assert collective_words(waiting) == "all_reduce 56812 of group 0"
    assert all(one.done for one in asleep.groups[0].calls)


@pytest.mark.parametrize(
    ("hang", "calls"),
    [
        ("sleep", ("all_reduce 201 of group 0", "all_reduce 200 of group 0")),
        ("broadcast", ("all_reduce 201 of group 0", "broadcast 201 of group 0")),
    ],
)
def test_recorded_answers_of_the_hook_on_nccl(hang: str, calls: tuple[str, str]) -> None:
    """As the hook wrote them in hung ranks on two H200, where a second, empty recorder answers as well."""
    files = [(H200 / "hook-answers" / f"{hang}-rank{rank}.json").read_bytes() for rank in (0, 1)]
    found = [parse_file(one) for one in files]
    assert tuple(map(collective_words, found)) == calls
    assert [(one.groups[0].backend, one.groups[0].members) for one in found] == [("nccl", "0-1")] * 2  # fmt: skip
    assert not found[0].groups[0].calls[-1].done
    assert found[0].groups[0].calls[-1].timeout == 600.0


def test_a_full_recorder_is_a_small_file() -> None:
    dump = recording("desync", 0)
    assert len(dump["entries"]) == 2000
    assert len(file_of(dump, _0=[0, 1])) < 10_000


# --- both spellings ------------------------------------------------------------------------------


def test_a_finished_call_may_still_say_scheduled() -> None:
    """On gloo `retired` is what tells."""
    found = parse_file(file_of(gloo(entry(1), entry(2), entry(3, retired=False)), _0=[0, 1]))
    (one,) = found.groups
    assert (one.enqueued, one.completed, [c.done for c in one.calls]) == (3, 2, [True, True, False])
    first = one.calls[0]
    assert (first.elements, first.dtypes, first.timeout) == (34, "Float", 1800.0)
    assert 0 < first.created_at - 1_700_000_000 < 1


def test_counts_that_include_sends_are_not_believed() -> None:
    """Gloo counts them in `pg_status`, and only on the ranks that send: those would seem ahead."""
    status = {"last_enqueued_collective": "38", "last_completed_collective": "38"}
    (one,) = parse_file(file_of(gloo(entry(1), entry(2), **{"0": status}), _0=[0, 1])).groups
    assert (one.enqueued, one.completed) == (2, 2)


def test_what_was_pending_for_long_is_kept_beside_the_newest() -> None:
    entries = [entry(n, retired=n < 5) for n in range(1, 200)]
    (one,) = parse_file(file_of(gloo(*entries), _0=[0, 1])).groups
    assert [call.sequence for call in one.calls] == [*range(5, 9), *range(196, 200)]
    assert (one.enqueued, one.completed, len(one.calls)) == (199, 4, MAX_CALLS)


def test_point_to_point_calls_are_told_apart() -> None:
    recv = entry(
        9, retired=False, is_p2p=True, profiling_name="nccl:recv 3<-2", collective_seq_id=1
    )
    found = parse_file(file_of(gloo(entry(1), recv, entry(8, is_p2p=True)), _0=[0, 1]))
    assert found.sends == ("recv 3<-2",)
    assert [call.sequence for call in found.groups[0].calls] == [1]


def nccl(number: int, **more: Any) -> dict[str, Any]:
    return entry(number, **{"profiling_name": "nccl:all_reduce"} | more)


def batch(number: int, *, done: bool) -> list[dict[str, Any]]:
    """A send and a receive in one batch of NCCL: only its end is ever marked as finished."""
    about = {"is_p2p": True, "collective_seq_id": 0, "p2p_seq_id": number, "retired": False}
    names = ("nccl:send 3->2", "nccl:recv 3<-1")
    members = [nccl(number, **about | {"profiling_name": name}) for name in names]
    return [*members, nccl(number, **about | {"profiling_name": "nccl:coalesced", "retired": done})]


def test_members_of_a_finished_batch_are_finished() -> None:
    entries = [*batch(1, done=True), *(nccl(n) for n in range(2, 40)), *batch(40, done=False)]
    assert parse_file(file_of(gloo(*entries[:-3]), _0=[0, 1])).sends == ()
    pending = parse_file(file_of(gloo(*entries), _0=[0, 1])).sends
    assert pending == ("send 3->2", "recv 3<-1", "coalesced")


def test_a_send_to_another_rank_is_no_proof_that_a_receive_ended() -> None:
    """Without a batch each pair of ranks has a stream of its own."""
    about = {"is_p2p": True, "collective_seq_id": 0}
    waits = nccl(1, **about, p2p_seq_id=1, retired=False, profiling_name="nccl:recv 3<-1")
    other = nccl(2, **about, p2p_seq_id=2, profiling_name="nccl:send 3->2")
    assert parse_file(file_of(gloo(waits, other), _0=[0, 1])).sends == ("recv 3<-1",)
    same = nccl(2, **about, p2p_seq_id=2, profiling_name="nccl:recv 3<-1")
    assert parse_file(file_of(gloo(waits, same), _0=[0, 1])).sends == ()


def test_collectives_of_nccl_end_in_their_order_and_those_of_gloo_need_not() -> None:
    calls = {"nccl": (8, 8), "gloo": (8, 0)}
    for backend, counts in calls.items():
        name = {"profiling_name": f"{backend}:all_reduce"}
        entries = [entry(n, retired=n == 8, **name) for n in range(1, 9)]
        (one,) = parse_file(file_of(gloo(*entries), _0=[0, 1])).groups
        assert (one.enqueued, one.completed) == counts


def test_of_a_group_that_was_made_anew_only_the_new_one_speaks() -> None:
    """It has the same name, and counts from 1; the call at which the old one broke is never finished."""
    old = [nccl(n, retired=n < 7) for n in range(1, 8)]
    sent = nccl(7, retired=False, is_p2p=True, profiling_name="nccl:send 3->2")
    new = [nccl(n, pg_id=2, collective_seq_id=n - 10) for n in (11, 12)]
    other = nccl(13, pg_id=1, process_group=["1", "dp"])
    found = parse_file(file_of(gloo(*old, sent, *new, other), _0=[0, 1], _1=[0, 1]))
    assert [(one.name, one.enqueued, one.completed) for one in found.groups] == [
        ("0", 2, 2), ("1", 13, 13),
    ]  # fmt: skip
    assert found.sends == ()


def counted(*entries: dict[str, Any], **about: Any) -> list[tuple[str, str, int, int]]:
    """Name, backend, newest call and number of calls of each group, where group 0 tells this of itself."""
    whole = json.loads(file_of(gloo(*entries), _0=[0, 1]))
    whole["groups"]["0"].update(about)
    found = parse_file(json.dumps(whole).encode()).groups
    assert {one.members for one in found} <= {"0-1"}
    return [(one.name, one.backend, one.enqueued, len(one.calls)) for one in found]


@pytest.mark.parametrize(
    ("calls", "groups"),
    [(0, [("0", "gloo", 0, 0)]), (3, [("0", "gloo", 3, 1)]), (-1, [("0", "gloo", 3, 1)])],
)
def test_a_new_group_without_a_call_has_not_made_those_of_the_old_one(
    calls: int, groups: list[Any]
) -> None:
    assert counted(entry(3), calls=calls, backend="gloo") == groups


@pytest.mark.parametrize(("calls", "groups"), [(0, [("0", "nccl", 0, 0)]), (3, []), (-1, [])])
def test_a_group_that_has_called_nothing_is_told_and_one_that_does_not_count_is_not(
    calls: int, groups: list[Any]
) -> None:
    assert counted(calls=calls, backend="nccl") == groups


def test_of_a_group_with_two_backends_only_the_one_that_counts_has_called_nothing() -> None:
    assert counted(entry(3), calls=0, backend="nccl") == [("0", "nccl", 0, 0), ("0", "gloo", 3, 1)]


def test_without_a_backend_nobody_knows_who_has_called_nothing() -> None:
    """So says a hook that is older than the agent: what the recorder holds may be of the old group."""
    assert counted(calls=0) == counted(entry(3), calls=0) == []


def test_groups_without_a_call_take_no_room_of_the_others() -> None:
    whole = json.loads(file_of(gloo(entry(3)), _0=[0, 1]))
    unused = {"desc": "pp", "ranks": [0, 1], "calls": 0, "backend": "gloo"}
    whole["groups"] |= {str(number): unused for number in range(1, 200)}
    found = parse_file(json.dumps(whole).encode()).groups
    assert (len(found), found[-1].name) == (MAX_GROUPS, "0")


def test_calls_of_which_no_recorder_tells_are_a_named_silence() -> None:
    whole = json.loads(file_of(gloo(entry(3)), _0=[0, 1]))
    for backend, calls, value in (("nccl", 5, ("nccl",)), ("nccl", 0, ()), ("gloo", 5, ()), ("", 5, ())):  # fmt: skip
        whole["groups"]["0"] |= {"calls": calls, "backend": backend}
        assert parse_file(json.dumps(whole).encode()).silent == value


def test_a_group_without_known_members_has_none() -> None:
    (one,) = parse_file(file_of(gloo(entry(1)))).groups
    assert one.members == ""


# --- hostile files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b'{"layout": 2}', b'{"layout": 1, "dumps": 3}', b"\xff\xfe", b"[" * 100_000,
        b'{"layout": 1, "groups": {"0": {"ranks": [-1]}}}', b'{"layout": 1, "groups": {"0": {"ranks": [1e9]}}}',
        b'{"layout": 1, "dumps": [{"entries": [{"collective_seq_id": 99999999999999999999999}]}]}',
        b'{"layout": 1, "dumps": [{"entries": [{"input_sizes": [[-5]]}]}]}',
        b'{"layout": 1, "dumps": [{"entries": [{"process_group": ["0"]}]}]}',
        b" " * (MAX_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_not_what_it_should_be_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it (is|has) ") as caught:
        parse_file(data)
    assert len(str(caught.value)) < 300


def test_names_are_cleaned_and_cut() -> None:
    bad = entry(
        1,
        process_group=["\x1b[31m0" + "x" * 300, "d"],
        profiling_name="gloo:all\x1b[2J",
        retired=False,
    )
    (one,) = parse_file(file_of(gloo(bad))).groups
    assert "\x1b" not in one.name
    assert len(one.name) <= 64
    assert one.calls[0].op == "collective"


ODD = st.sampled_from(
    (
        None,
        True,
        -1,
        0,
        7,
        2**70,
        0.5,
        "",
        "0",
        "-1",
        "é",
        [],
        [[]],
        [[3]],
        [-1],
        ["0", "dp"],
        {},
        {"0": {}},
    )
)
FIELDS = st.dictionaries(st.sampled_from((*written.FIELDS, "x")), ODD, max_size=3)


@given(
    ranks=ODD, entries=st.lists(FIELDS.map(lambda more: entry(1) | more), max_size=3), status=ODD
)
def test_any_file_is_read_or_refused(ranks: Any, entries: Any, status: Any) -> None:
    dump = {"version": "2.10", "entries": entries, "pg_status": status}
    whole = {"layout": 1, "groups": {"0": {"ranks": ranks}}, "dumps": [dump]}
    try:
        found = parse_file(json.dumps(whole).encode())
    except ValueError:
        return
    for group in found.groups:
        assert len(group.calls) <= MAX_CALLS
        assert all(call.sequence > 0 and (call.elements or 0) >= 0 for call in group.calls)
    collective_words(found)


# --- the hook's side -----------------------------------------------------------------------------


class Group:
    group_desc = "dp"

    def rank(self) -> int:
        return 3

    def name(self) -> str:
        return "nccl"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stand-ins for the modules of PyTorch that are asked."""

    def install(*, world: Any = True, **dumps: Callable[[], bytes]) -> None:
        group = Group()
        names, ranks = {group: "7"}, {group: {3: 0, 5: 1}}
        known = types.SimpleNamespace(pg_names=names, pg_group_ranks=ranks, default_pg=group)
        c10d = types.SimpleNamespace(_world=known if world else None)
        binding = types.SimpleNamespace(_distributed_c10d=types.SimpleNamespace(**dumps))
        monkeypatch.setitem(written.sys.modules, "torch.distributed.distributed_c10d", c10d)
        monkeypatch.setitem(written.sys.modules, "torch._C", binding)

    return install


@pytest.fixture
def record(tmp_path: Path) -> Iterator[HookRecord]:
    one = HookRecord(str(tmp_path))
    yield one
    one.close()


def answers(record: HookRecord) -> tuple[int | None, int]:
    found = parse_record(Path(record.path).read_bytes(), record.pid, start_ticks(), 1e9)
    return found.flight_signal, found.flight_answers


def test_it_tells_membership_and_both_recorders(torch: Callable[..., None]) -> None:
    nccl = gloo(entry(4, process_group=["7", "dp"], profiling_name="nccl:all_reduce"))
    other = gloo(entry(2, process_group=["7", "dp"]))
    torch(
        _dump_nccl_trace_json=lambda: json.dumps(nccl).encode(),
        _dump_fr_trace_json=lambda: json.dumps(other).encode(),
    )
    data = written.recorded_json(-1)
    assert json.loads(data)["rank"] == 3
    found = parse_file(data).groups
    assert [(one.backend, one.description, one.members, one.enqueued) for one in found] == [
        ("nccl", "dp", "3,5", 4), ("gloo", "dp", "3,5", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "number"), [(lambda _: 4, 4), (lambda _: 1 / 0, -1)])
def test_a_group_tells_how_many_calls_it_has_made(
    torch: Callable[..., None], monkeypatch: pytest.MonkeyPatch, count: Any, number: int
) -> None:
    torch()
    monkeypatch.setattr(Group, "_get_sequence_number_for_group", count, raising=False)
    about = written.membership()[0]["7"]
    assert (about["calls"], about["backend"]) == (number, "nccl")


def test_the_first_call_of_a_group_is_told_by_who_has_not_made_it(
    torch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(_dump_nccl_trace_json=lambda: json.dumps(gloo()).encode())
    monkeypatch.setattr(Group, "_get_sequence_number_for_group", lambda _: 0, raising=False)
    (one,) = parse_file(written.recorded_json(-1)).groups
    assert (one.name, one.backend, one.members, one.enqueued) == ("7", "nccl", "3,5", 0)
    monkeypatch.delattr(Group, "name")
    assert parse_file(written.recorded_json(-1)).groups == ()


def handler(lines: list[str], *entries: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's handlers, of which one answers with these calls."""

    def answer(request: Any, response: Any) -> None:
        lines.append(request.get_param("backend"))
        response.set_status(200)
        response.set_content(json.dumps(gloo(*entries)), "application/json")

    found = {"fr_trace_json": answer}
    return {"_get_handler": found.__getitem__, "_Request": object, "_Response": object}


def test_the_recorder_of_nccl2_is_asked_by_its_handler(
    torch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    pending = entry(9, process_group=["7", "dp"], profiling_name="nccl2:all_reduce", retired=False)
    other = entry(3, process_group=["7", "dp"])  # older versions answer with that of gloo
    torch(**handler(lines, other, pending))
    assert parse_file(written.recorded_json(-1)).groups == ()  # legacy NCCL is not asked that way
    monkeypatch.setattr(Group, "name", lambda _: "nccl2")
    (one,) = parse_file(written.recorded_json(-1)).groups
    assert lines == ["nccl2"]
    assert (one.backend, one.enqueued, one.completed, one.members) == ("nccl2", 9, 8, "3,5")


def test_a_pytorch_without_handlers_tells_nothing_of_nccl2(
    torch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch()
    monkeypatch.setattr(Group, "name", lambda _: "nccl2")
    assert parse_file(written.recorded_json(-1)).groups == ()


REAL = """
import json, sys, torch, torch.distributed as dist
from mldebug_training.hook.fr_handler import only_of, recorded_by
dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
dist.all_reduce(torch.zeros(3))
dump = json.loads(recorded_by("gloo"))
print(len(only_of("gloo", dump)["entries"]), len(only_of("nccl2", dump)["entries"]))
"""


def test_a_real_handler_answers_in_its_own_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    argv = [sys.executable, "-c", REAL, f"file://{tmp_path}/rendezvous"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["1", "0"], done.stderr


def test_before_there_are_groups_no_recorder_is_asked(torch: Callable[..., None]) -> None:
    def first_question() -> bytes:
        raise AssertionError("it makes the recorder, and reads its settings too early")

    torch(world=False, _dump_fr_trace_json=first_question)
    assert parse_file(written.recorded_json(0)).groups == ()


def test_each_answer_is_counted_and_takes_the_place_of_the_last(
    torch: Callable[..., None], record: HookRecord
) -> None:
    torch(_dump_fr_trace_json=lambda: json.dumps(gloo(entry(1))).encode())
    flight = written.FlightFile(record)
    assert answers(record) == (None, 0)
    record.signal = 63
    record.write()
    flight.armed(63)
    flight.answer()
    flight.answer()
    assert answers(record) == (61, 2)
    path = Path(record.path + ".flight")
    assert parse_file(path.read_bytes()).groups
    assert path.stat().st_mode & 0o777 == 0o600
    assert not Path(f"{path}.new").exists()
    flight.close()
    assert not path.exists()


@pytest.mark.parametrize("error", [OSError(28, "full"), OSError(13, "no right")])
def test_where_there_is_no_room_no_old_answer_is_left(
    torch: Callable[..., None], record: HookRecord, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    torch(_dump_fr_trace_json=lambda: json.dumps(gloo(entry(1))).encode())
    flight = written.FlightFile(record)
    flight.answer()

    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(written, "reserve", refuse)
    flight.answer()
    assert answers(record)[1] == 2
    assert list(Path(record.path).parent.glob("*.flight*")) == []
    flight.close()


@pytest.mark.parametrize("dump", [lambda: b"{", lambda: b"[]", lambda: 1 / 0])
def test_a_recorder_that_fails_costs_only_this(
    torch: Callable[..., None], record: HookRecord, dump: Callable[[], Any]
) -> None:
    torch(_dump_fr_trace_json=dump)
    flight = written.FlightFile(record)
    flight.answer()
    assert answers(record)[1] == 1
    flight.close()


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ("2.5.1", {}, {OLD: "2000"}),
        ("2.7.0+cu126", {}, {OLD: "2000"}),
        ("2.8.0", {}, {NEW: "2000"}),
        ("2.10.0a0+git1", {}, {NEW: "2000"}),
        ("2.11.0+cu130", {}, {}),
        ("3.0", {}, {}),
        ("unknown", {}, {}),
        ("", {}, {}),
        ("2.7.0", {OLD: "0"}, {OLD: "0"}),
        ("2.9.0", {OLD: "500"}, {OLD: "500"}),
        ("2.7.0", {NEW: ""}, {NEW: ""}),
    ],
)
def test_recording_is_switched_on_where_it_is_off_and_never_against_the_user(
    version: str, before: dict[str, str], after: dict[str, str]
) -> None:
    environ = dict(before)
    record_collectives(version, environ)
    assert environ == after


# --- how long calls took -------------------------------------------------------------------------


def timed_file(*entries: dict[str, Any]) -> bytes:
    about = {"0": {"desc": "default_pg", "ranks": [0, 1]}}
    file = {
        "layout": 1,
        "rank": 0,
        "groups": about,
        "dumps": [],
        "timed": written.timings(gloo(*entries)),
    }
    return json.dumps(file).encode()


def test_durations_of_the_newest_calls_arrive() -> None:
    some = [entry(n, profiling_name="nccl:all_reduce", duration_ms=0.5 * n) for n in range(1, 101)]
    (timed,) = parse_file(timed_file(*some)).timed
    assert (timed.group, timed.backend, timed.members) == ("0", "nccl", "0-1")
    assert [call.sequence for call in timed.calls] == list(range(37, 101))
    assert timed.calls[-1].seconds == pytest.approx(0.05)
    assert timed.calls[-1].created_at == pytest.approx(1_700_000_010.0)


def test_without_timing_there_are_none() -> None:
    """As gloo, and NCCL without TORCH_NCCL_ENABLE_TIMING, write them."""
    assert parse_file(timed_file(*map(entry, range(1, 20)))).timed == ()
    assert parse_file(file_of(gloo(entry(1)), _0=[0, 1])).timed == ()


def test_what_is_not_done_or_a_transfer_is_not_timed() -> None:
    pending = entry(1, retired=False, state="started", duration_ms=3.0)
    assert written.timings(gloo(pending, entry(2, is_p2p=True, duration_ms=3.0))) == []


@pytest.mark.parametrize(
    "timed",
    [
        [{"group": "0", "calls": [[1, -5.0, 0]]}],
        [{"group": "0", "calls": [[1, 1e300, 0]]}],
        [{"group": "0", "calls": [[1, 1.0, 0]] * 65}],
        [{"group": "0", "calls": [["1", 1.0, 0]]}],
        [{"group": "0"}] * 65,
        {"group": "0"},
    ],
)
def test_hostile_durations_are_not_believed(timed: object) -> None:
    file = {"layout": 1, "rank": 0, "groups": {}, "dumps": [], "timed": timed}
    with pytest.raises(ValueError, match="not what it should be"):
        parse_file(json.dumps(file).encode())
