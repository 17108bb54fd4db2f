"""Counts first: who is asked for all its calls, and that whoever is not tells the same as if it were."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.capture.flight_recorder.analysis import Analysis
from mldebug.capture.flight_recorder.dump import limits_of_living_job, parse_dump
from mldebug.capture.flight_recorder.status import RankStatus, beside, parse_status, spoken_for
from mldebug.core.model import FlightRecord
from mldebug_agents.capture.flight_recorder import worker_servers
from mldebug_agents.capture.flight_recorder.worker_servers import SECONDS, ask_servers
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.capture.dumps import Dump, as_json, calls, dump, late, made, odd_size, stuck, transfer
from shared.system.patience import PATIENCE
from shared.system.whose import MINE
from unit.capture.test_flight_servers import BODY, LIST, listening

HANDLERS = LIST.replace(b"fr_trace_json", b"dump_nccl_trace_json").replace(b"17", b"24")


def with_status(one: Dump) -> Dump:
    """What `pg_status` says of these calls."""
    status: dict[str, dict[str, int]] = {}
    for call in one["entries"]:
        its = status.setdefault(str(call["pg_id"]), dict.fromkeys(("enqueued", "started", "completed"), -1))  # fmt: skip
        number, state = call["collective_seq_id"], call["state"]
        its["enqueued"] = max(its["enqueued"], number)
        its["started"] = max(its["started"], number if state != "scheduled" else -1)
        its["completed"] = max(its["completed"], number if state == "completed" else -1)
    by_name = {key: {f"last_{name}_collective": n for name, n in its.items()} for key, its in status.items()}  # fmt: skip
    return one | {"pg_status": by_name}


def active(one: Dump) -> Dump:
    """As PyTorch's `onlyactive`: what is not marked as ended."""
    return one | {"entries": [call for call in one["entries"] if call["state"] != "completed"]}


def status_of(one: Dump) -> RankStatus | None:
    return parse_status(as_json(with_status(one) | {"entries": []}))


def record(one: Dump) -> FlightRecord:
    return parse_dump(
        as_json(one), limits_of_living_job(len(json.loads(one["pg_config"]["0"]["ranks"])))
    )


# --- who is asked ------------------------------------------------------------------------------------


def statuses(dumps: Mapping[int, Dump]) -> dict[int, RankStatus]:
    return {rank: result for rank, one in dumps.items() if (result := status_of(one)) is not None}


def test_who_lags_is_asked_and_one_of_the_others() -> None:
    assert spoken_for(statuses(late(rank=2, world=5))) == {1: 0, 3: 0, 4: 0}
    assert spoken_for(statuses(late(rank=0, world=5))) == {2: 1, 3: 1, 4: 1}


def test_of_as_many_on_both_sides_those_who_are_further_have_one_speaker() -> None:
    both = late(2, 4) | {3: late(2, 4)[2]}
    assert spoken_for(statuses(both)) == {1: 0}


def test_ranks_of_other_groups_are_not_compared() -> None:
    tp = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    by_name = {rank: status_of(dump(calls(4, group="tp"), {"tp": its})) for rank, its in tp.items()}
    assert spoken_for({rank: one for rank, one in by_name.items() if one}) == {1: 0}
    assert spoken_for({}) == {}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"pg_status": {}, "pg_config": {"0": {"ranks": "[0]"}}}', b'{"pg_status": 3}', b"{" * 999]
)  # fmt: skip
def test_what_is_no_status_tells_nothing(data: bytes) -> None:
    assert parse_status(data) is None


# --- what the others tell ----------------------------------------------------------------------------


def pending_calls(one: FlightRecord) -> dict[tuple[str, str], tuple[int, int, tuple[object, ...]]]:
    """All that a pending call of a record tells, by group."""
    return {
        (group.name, group.members): (group.enqueued, group.completed, tuple(c for c in group.calls if not c.done))
        for group in one.groups
    }  # fmt: skip


def test_calls_that_pend_beside_the_whole_of_another_tell_as_much() -> None:
    one = stuck(world=4)[0]
    found = beside(record(one), record(active(one)))
    assert found is not None
    assert pending_calls(found) == pending_calls(record(one))


def test_an_open_member_of_a_batch_that_is_long_over_is_none_that_pends() -> None:
    batch = [made("all_reduce", 1, state="scheduled"), made("coalesced", 1)]
    one = dump([*batch, *calls(5, first=2, last="scheduled")])
    found = beside(record(one), record(active(one)))
    assert found is not None
    assert pending_calls(found) == pending_calls(record(one))
    assert [call.sequence for call in found.groups[0].calls] == [5]


NOT_ALIKE = {
    "a call less": (dump(calls(4, last="started")), dump(calls(3))),
    "another call": (dump(calls(4, last="started")), dump(calls(3, last="started"))),
    "nothing pends": (dump(calls(4)), dump(calls(4))),
    "another group": (dump(calls(4, last="started")), dump(calls(4, last="started"), {"0": range(3)})),
    "a send": (dump([*calls(4, last="started"), transfer("send", 0, 1)]), dump(calls(4, last="started"))),
    "a receive": (dump(calls(4, last="started")), dump([*calls(4, last="started"), transfer("recv", 0, 1)])),
}  # fmt: skip


@pytest.mark.parametrize("why", NOT_ALIKE)
def test_it_has_to_be_asked_itself_where_it_differs_by(why: str) -> None:
    whole, other = NOT_ALIKE[why]
    assert beside(record(whole), record(active(other))) is None


GROUPS = {"0": range(4), "dp": [0, 1]}
ANY = st.lists(
    st.tuples(st.sampled_from(["0", "dp"]), st.sampled_from(["completed", "completed", "started", "scheduled"])),
    min_size=1, max_size=14,
)  # fmt: skip


def in_order(kinds: list[tuple[str, str]]) -> Dump:
    counts = dict.fromkeys(GROUPS, 0)
    made_ = []
    for group, state in kinds:
        counts[group] += 1
        made_.append(made("all_reduce", counts[group], state=state, group=group))
    return dump(made_, GROUPS)


@given(ANY, ANY)
def test_what_is_told_beside_is_what_all_calls_tell(
    first: list[tuple[str, str]], second: list[tuple[str, str]]
) -> None:
    """Whatever two ranks have called: either it is not believed, or it is what the rank would have told."""
    whole, other = in_order(first), in_order(second)
    if status_of(whole) == status_of(other):
        found = beside(record(whole), record(active(other)))
        assert found is None or pending_calls(found) == pending_calls(record(other))


OPS = st.sampled_from(["all_reduce", "broadcast", "barrier"])
PLAN = st.lists(st.tuples(st.sampled_from(["0", "dp"]), OPS), min_size=2, max_size=5)


@st.composite
def jobs(draw: st.DrawFn) -> dict[int, Dump]:
    """Ranks that have come less or more far on one path, one of which has left it: another call, two in another order, one left out."""
    world, plan = draw(st.sampled_from([3, 4, 5])), draw(PLAN)
    groups = {"0": range(world), "dp": range(draw(st.sampled_from([2, world])))}
    odd, at = draw(st.integers(0, world - 1)), draw(st.integers(0, len(plan) - 1))
    own = [*plan]
    how = draw(st.sampled_from(["other", "swap", "less", "none"]))
    if how == "other":
        own[at] = (own[at][0], draw(OPS))
    elif how == "swap":
        own[at - 1], own[at] = own[at], own[at - 1]
    elif how == "less":
        del own[at]
    return {rank: _come(rank, own if rank == odd else plan, groups, draw(st.integers(at, at + 2)), draw(st.integers(0, 2))) for rank in range(world)}  # fmt: skip


def _come(
    rank: int,
    path: list[tuple[str, str]],
    groups: Mapping[str, Sequence[int]],
    done: int,
    pending: int,
) -> Dump:
    counts, found = dict.fromkeys(groups, 0), []
    mine = [(group, op) for group, op in path if rank in groups[group]]
    for number, (group, op) in enumerate(mine[: done + pending]):
        counts[group] += 1
        state = "completed" if number < done else "scheduled"
        found.append(made(op, counts[group], state=state, group=group))
    return dump(found, {name: ranks for name, ranks in groups.items() if rank in ranks})


def spared(dumps: Mapping[int, Dump]) -> dict[int, FlightRecord]:
    """The records as they are had where one speaks for others."""
    speakers, found = spoken_for(statuses(dumps)), {}
    for rank, one in dumps.items():
        whole = dumps.get(speakers.get(rank, -1))
        found[rank] = (whole and beside(record(whole), record(active(one)))) or record(one)
    return found


@settings(max_examples=150)
@given(jobs())
def test_who_is_spared_changes_nothing_of_what_is_found(dumps: dict[int, Dump]) -> None:
    whole = Analysis({rank: record(one) for rank, one in dumps.items()}).found
    few = Analysis(spared(dumps)).found
    assert (few.kind, few.culprits, few.explanation) == (whole.kind, whole.culprits, whole.explanation)  # fmt: skip


def test_nobody_is_spared_where_one_still_waits_in_what_the_others_have_done() -> None:
    """In the call that is done on the others it is the odd one: their own calls are the votes."""
    path = [*calls(4), made("broadcast", 5), made("all_reduce", 6, state="started")]
    dumps = dict.fromkeys(range(3), dump(path)) | {3: dump(calls(5, last="started"))}
    assert spoken_for(statuses(dumps)) == {}
    found = Analysis(spared(dumps)).found
    assert (found.kind, found.culprits, found.vote and found.vote.sequence) == ("mismatch", (3,), 5)


# --- by servers --------------------------------------------------------------------------------------


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


Requests = dict[int, list[str]]


@contextmanager
def serving(
    folder: Path, dumps: Mapping[int, Dump], old: bool = False
) -> Iterator[tuple[dict[int, list[str]], Callable[[], Requests]]]:
    """A worker server for each; their places, and what each was asked beside its list of handlers. `old`: it knows no options."""

    def answers(one: Dump) -> Callable[..., None]:
        def answer(connection: object, data: bytes) -> None:
            result = with_status(one)
            if b"?" in data and old:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")  # type: ignore[attr-defined]
                return
            if b"includecollectives=false" in data:
                result = {name: it for name, it in result.items() if name != "entries"} | {"entries": []}  # fmt: skip
            if b"onlyactive=true" in data:
                result = active(result)
            body = as_json(result)
            connection.sendall(HANDLERS if data[:3] == b"GET" else BODY % len(body) + body)  # type: ignore[attr-defined]

        return answer

    with ExitStack() as stack:
        by_name = {
            rank: stack.enter_context(listening(folder / f"server{rank}", answers(one)))
            for rank, one in dumps.items()
        }
        places = {rank: [f"/proc/{os.getpid()}/root{folder}/server{rank}"] for rank in dumps}
        yield (
            places,
            lambda: {rank: [_option(one) for one in lines[1:]] for rank, lines in by_name.items()},
        )


def _option(data: bytes) -> str:
    return data.split()[1].decode().partition("?")[2] or "all"


STATUS, ACTIVE = "includecollectives=false", "onlyactive=true"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than half a second for the statuses; then all are asked for everything, which is another test's."""
    monkeypatch.setattr(worker_servers, "QUICK", 10.0)


@pytest.mark.usefixtures("unhurried")
def test_only_who_lags_and_one_of_the_others_tell_all_their_calls(
    reader: Reader, tmp_path: Path
) -> None:
    dumps = late(rank=2, world=4, count=30)
    with serving(tmp_path, dumps) as (places, opened):
        answers = ask_servers(reader, places, dict.fromkeys(places, MINE), 4, 20.0)
        assert opened() == {0: [STATUS, "all"], 1: [STATUS, ACTIVE], 2: [STATUS, "all"], 3: [STATUS, ACTIVE]}  # fmt: skip
    records = {rank: one for rank, one in answers.items() if isinstance(one, FlightRecord)}
    assert {rank: pending_calls(one) for rank, one in records.items()} == {
        rank: pending_calls(record(one)) for rank, one in dumps.items()
    }
    found = Analysis(records).found
    assert (found.kind, found.culprits) == ("missing_rank", (2,))


@pytest.mark.usefixtures("unhurried")
def test_equal_counts_hide_no_other_call(reader: Reader, tmp_path: Path) -> None:
    with serving(tmp_path, odd_size(rank=3, world=4)) as (places, opened):
        answers = ask_servers(reader, places, dict.fromkeys(places, MINE), 4, 20.0)
        assert opened()[3] == [STATUS, ACTIVE]
    found = Analysis({rank: one for rank, one in answers.items() if not isinstance(one, str)}).found
    assert (found.kind, found.culprits) == ("mismatch", (3,))


def test_where_nobody_waits_all_tell_everything(reader: Reader, tmp_path: Path) -> None:
    with serving(tmp_path, dict.fromkeys(range(3), dump(calls(4)))) as (places, opened):
        assert all(isinstance(one, FlightRecord) for one in ask_servers(reader, places, dict.fromkeys(places, MINE), 4, 20.0).values())  # fmt: skip
        assert {tuple(one[-1:]) for one in opened().values()} == {("all",)}


def test_where_ranks_of_the_job_are_elsewhere_all_tell_everything(
    reader: Reader, tmp_path: Path
) -> None:
    """One of these may wait in a call that is done here."""
    with serving(tmp_path, stuck(world=3)) as (places, opened):
        few = {rank: places[rank] for rank in (0, 1)}
        assert all(isinstance(one, FlightRecord) for one in ask_servers(reader, few, dict.fromkeys(few, MINE), 3, 20.0).values())  # fmt: skip
        assert opened() == {0: ["all"], 1: ["all"], 2: []}


def test_servers_that_know_no_options_tell_everything(reader: Reader, tmp_path: Path) -> None:
    with serving(tmp_path, stuck(world=3), old=True) as (places, opened):
        assert all(isinstance(one, FlightRecord) for one in ask_servers(reader, places, dict.fromkeys(places, MINE), 3, 20.0).values())  # fmt: skip
        assert opened() == {rank: [STATUS, "all"] for rank in range(3)}


def test_one_that_is_silent_keeps_nobody_else_from_telling(reader: Reader, tmp_path: Path) -> None:
    release = threading.Event()
    dumps = {rank: one for rank, one in stuck(world=4).items() if rank != 3}
    with serving(tmp_path, dumps) as (places, _):
        path = tmp_path / "silent"
        with listening(path, lambda *_: release.wait(30)):
            began = time.monotonic()
            places[3] = [f"/proc/{os.getpid()}/root{path}"]
            answers = ask_servers(reader, places, dict.fromkeys(places, MINE), 4, SECONDS + 1)
            took = time.monotonic() - began
            release.set()
    assert [rank for rank, one in answers.items() if isinstance(one, FlightRecord)] == [0, 1, 2]
    assert "timed out" in str(answers[3])
    assert took < (SECONDS + 4) * PATIENCE


def test_a_speaker_that_then_fails_keeps_nobody_else_from_telling(
    reader: Reader, tmp_path: Path
) -> None:
    """It has told how far it is, and then not what it has called: the others are asked for all."""
    release = threading.Event()

    def stops(connection: socket.socket, data: bytes) -> None:
        if b"?" in data or data[:3] == b"GET":
            body = as_json(with_status(dumps[0]) | {"entries": []})
            connection.sendall(HANDLERS if data[:3] == b"GET" else BODY % len(body) + body)
        else:
            release.wait(30)

    dumps = stuck(world=4)
    others = {rank: one for rank, one in dumps.items() if rank}
    with serving(tmp_path, others) as (places, _), listening(tmp_path / "speaker", stops):
        places = {0: [f"/proc/{os.getpid()}/root{tmp_path}/speaker"]} | places
        answers = ask_servers(reader, places, dict.fromkeys(places, MINE), 4, SECONDS + 1)
        release.set()
    assert [rank for rank, one in answers.items() if isinstance(one, FlightRecord)] == [1, 2, 3]
    assert "timed out" in str(answers[0])
