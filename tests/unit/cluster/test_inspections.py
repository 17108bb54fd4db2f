"""Ranks on other nodes are inspected: whom a coordinator asks for which ranks, what it refuses, and what it believes of the answers."""

import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mldebug.capture.inspection import (
    InspectedRanks,
    InspectionOptions,
    RankHolders,
    RankProfile,
    believed,
    within,
)
from mldebug.capture.profile.summary import ProfileSummary, Share
from mldebug.cluster.inspection import (
    INSPECT_PATH,
    MAX_FILES,
    MAX_WORDS,
    Inspection,
    InspectOrder,
    NodeInspection,
    NodeInspectOrder,
    ranks_by_node,
)
from mldebug.cluster.known_peers import CaptureCall, KnownPeer
from mldebug.cluster.messages import Announcement, RunNews
from mldebug.cluster.run_identity import RunKey
from mldebug.cluster.wire import MAX_BYTES
from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.model import HeldLine, MemoryFailure, MemoryHolders
from mldebug_agents.cluster.peers import inspections
from mldebug_agents.cluster.peers.inspections import Inspections, Turns, part_of, plan
from mldebug_agents.cluster.peers.net.broadcast import NodeAnswer
from mldebug_agents.cluster.peers.net.client import Peer
from mldebug_agents.cluster.peers.net.errors import SilentError
from mldebug_agents.cluster.peers.net.http_answer import HttpAnswer
from mldebug_agents.cluster.peers.openapi import INSPECT
from mldebug_agents.cluster.peers.verbs import peer_verbs
from mldebug_agents.incidents.node_inspection import InspectionOutcome

KEY: RunKey = ("torchrun", "4711", "uid 1000")
PROFILE = InspectionOptions(what="profile")
TRACE = "profile-rank{}.trace.json.gz"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", {"n1": (0,)}),
        ("5", {"n2": (5,)}),
        ("3-4", {"n1": (3,), "n2": (4,)}),
        ("0,6-7", {"n1": (0,), "n2": (6, 7)}),
    ],
)
def test_each_rank_is_asked_where_it_is(wanted: str, found: dict[str, tuple[int, ...]]) -> None:
    assert ranks_by_node(wanted, {"n1": ((0, 3),), "n2": ((4, 7),), "n3": ()}) == found


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("8", "no node shows rank 8"),
        ("3,9", "no node shows rank 9"),
        ("0-16", "17 ranks are too many"),
        ("0-999999", "1000000 ranks are too many"),
        ("1;rm", "rank"),
        ("7", "n2 and n9 both show rank 7"),
    ],
)
def test_ranks_that_are_not_just_on_one_node_are_refused(wanted: str, why: str) -> None:
    shown = {"n1": ((0, 3),), "n2": ((4, 7),), "n9": ((7, 7),)}
    with pytest.raises(MldebugError, match=why):
        ranks_by_node(wanted, shown)


def call(**ranks: str) -> CaptureCall:
    def news(folded: str) -> RunNews:
        return RunNews(key=KEY, name="train.py", world_size=8, ranks=folded)

    peers = tuple(
        KnownPeer(
            Announcement(node=node, agent=f"a-{node}", port=9754, runs=(news(folded),)),
            f"10.0.0.{number}",
            0.0,
        )
        for number, (node, folded) in enumerate(ranks.items(), 1)
    )
    return CaptureCall("", news(""), "n1", peers)


def order(ranks: str = "", what: Any = "profile", uid: int | None = None) -> InspectOrder:
    return InspectOrder(job="train.py", ranks=ranks, uid=uid, options=InspectionOptions(what=what))


def test_a_run_that_stalls_is_left_alone() -> None:
    with pytest.raises(MldebugError, match=r"a stall of train.py is open \(report r-1\)"):
        plan(order("0"), call(n1="0-3", n2="4-7"), "r-1")


def node_order(uid: int | None) -> NodeInspectOrder:
    return NodeInspectOrder(key=KEY, attempt=0, ranks={"n1": "0"}, uid=uid, options=PROFILE)


def run(kind: str = "") -> Any:
    incident = SimpleNamespace(kind=kind, id="r-1") if kind else None
    return SimpleNamespace(incident=incident, job=SimpleNamespace(name="train.py"))


@pytest.mark.parametrize("uid", [None, 1000])
@pytest.mark.parametrize("kind", ["", "slowdown", "abnormal_end"])
def test_who_may_see_all_and_the_runs_own_user_are_served(uid: int | None, kind: str) -> None:
    assert part_of(node_order(uid), run(kind), "n1").ranks == "0"


def test_each_node_looks_itself_whose_run_it_is_and_whether_it_stalls() -> None:
    """What the coordinator has seen is seconds old, and another one may say what it likes."""
    with pytest.raises(MldebugError, match="it is another user's"):
        part_of(node_order(1001), run(), "n1")
    with pytest.raises(MldebugError, match="a stall of train"):
        part_of(node_order(1000), run("stall"), "n1")
    with pytest.raises(MldebugError, match="it runs here no more"):
        part_of(node_order(1000), None, "n1")


def test_one_at_a_time_for_each_run_and_few_in_all() -> None:
    turns = Turns(2)
    with turns.take("a"):
        with pytest.raises(MldebugError, match="one at a time"), turns.take("a"):
            pass
        with (
            turns.take("b"),
            pytest.raises(MldebugError, match="2 profiles of other jobs"),
            turns.take("c"),
        ):
            pass
        with turns.take("c"):
            pass
    with pytest.raises(ZeroDivisionError), turns.take("a"):
        _ = 1 / 0
    with turns.take("a"):
        pass


def profile(rank: int, **more: Any) -> RankProfile:
    return RankProfile(rank=rank, pid=7, file=TRACE.format(rank), **more)


def test_what_a_node_sends_of_others_and_names_that_lead_elsewhere_are_not_believed() -> None:
    summary = ProfileSummary(
        span=1.0, operators=(Share(name="a\x1b[31mb\u202ec", microseconds=1.0, count=1),)
    )
    sent = InspectedRanks(
        profiles=(
            profile(0, trace=summary, node="n9"),
            profile(1),
            RankProfile(rank=2, pid=7, file="../../etc/cron.d/x"),
            RankProfile(rank=3, pid=7, file=TRACE.format(0)),
            RankProfile(rank=4, pid=7, failure="\x1b]0;title\x07" + "x" * 9999),
            profile(5),
        ),
        memory=(RankHolders(rank=0, pid=7, file="profile.txt"),),
        files={
            TRACE.format(0): b"0",
            TRACE.format(1): b"1",
            "../../etc/cron.d/x": b"x",
            "report.json": b"{}",
        },
    )
    found = believed(sent, (0, 2, 3, 4, 5), "n1")
    assert {one.rank: one.file for one in found.profiles} == {0: TRACE.format(0), 2: "", 3: "", 4: "", 5: ""}  # fmt: skip
    assert found.files == {TRACE.format(0): b"0"}
    assert {one.node for one in found.ranks} == {"n1"}
    text = found.text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) < 600


def test_a_trace_that_is_too_large_to_travel_is_left_out_and_its_summary_stays() -> None:
    found = InspectedRanks(
        profiles=(profile(0, steps="4"), profile(1, steps="4"), profile(2, steps="4")),
        files={TRACE.format(0): b"x" * 10, TRACE.format(1): b"x" * 3000, TRACE.format(2): b"x" * 20},
    )  # fmt: skip
    fits = within(found, 40)
    assert list(fits.files) == [TRACE.format(0), TRACE.format(2)]
    assert [bool(one.file) for one in fits.profiles] == [True, False, True]
    assert fits.profiles[1].left_out == "it has 2.93 KiB, and 40 B may travel from its node: ask there, or for fewer steps"  # fmt: skip
    assert not fits.failed
    assert within(found, 10_000) == found
    assert within(found, 0).files == {}


class FakeNodes:
    """Nodes that answer as they are told; a broadcast asks them all."""

    def __init__(self, answers: Mapping[str, bytes | MldebugError]) -> None:
        self.answers, self.orders = answers, list[NodeInspectOrder]()

    def broadcast(self, client: Any, to: list[Peer], path: str, body: bytes, **_: Any) -> Any:
        self.orders.append(msgspec.json.decode(body, type=NodeInspectOrder))
        return iter([NodeAnswer(self.answers[one.name]) for one in to])


def no_inspector(*_: Any) -> InspectionOutcome:
    raise AssertionError


@pytest.mark.parametrize("what", ["profile", "memory"])
def test_a_node_that_fails_costs_its_own_ranks_alone(
    what: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = InspectedRanks(profiles=(profile(0),), files={TRACE.format(0): b"0"})
    if what == "memory":
        good = InspectedRanks(memory=(RankHolders(rank=0, pid=7),))
    nodes = FakeNodes(
        {
            "n1": msgspec.json.encode(NodeInspection(found=good, reply=b"packed")),
            "n2": SilentError("no answer in 3 s"),
            "n3": b'{"schema": "mldebug.peer/1", "found": 7}',
        }
    )
    monkeypatch.setattr(inspections, "broadcast", nodes.broadcast)
    planned = plan(order("0-1,4-5,8", what), call(n1="0-3", n2="4-7", n3="8"), "")
    work = Inspections(cast("Any", None), no_inspector)
    found = msgspec.json.decode(work.everywhere(planned), type=Inspection)
    (sent,) = nodes.orders
    assert sent.ranks == {"n1": "0-1", "n2": "4-5", "n3": "8"}
    assert sent.most == MAX_FILES // 3
    assert found.replies == {"n1": b"packed"}
    ranks = found.found.ranks
    assert [(one.rank, one.node, one.failure.partition(":")[0]) for one in ranks] == [
        (0, "n1", ""),
        (1, "n1", "its node told nothing of it"),
        (4, "n2", "no answer in 3 s"),
        (5, "n2", "no answer in 3 s"),
        (8, "n3", "malformed"),
    ]


def test_a_large_trace_on_its_way_is_held_but_once_in_each_form(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The agent that passes it on needs about three times its size: the trace, and the JSON that goes, while that grows."""
    size = 8 << 20
    name = "profile-rank0.trace.json.gz"
    found = InspectedRanks(profiles=(profile(0, node="n1"),), files={name: bytes(size)})
    body = msgspec.json.encode(NodeInspection(found=found))

    def sent(client: object, to: object, path: str, order: bytes, *, most: int, **_: object) -> Iterator[NodeAnswer]:  # fmt: skip
        answer = HttpAnswer(most)
        answer.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 1 << 16):
            answer.feed(body[at : at + (1 << 16)])
        answers = [NodeAnswer(answer.body())]
        while answers:
            yield answers.pop()

    monkeypatch.setattr(inspections, "broadcast", sent)
    work = Inspections(cast("Any", None), no_inspector)
    planned = plan(order("0"), call(n1="0-3"), "")
    tracemalloc.start()
    try:
        passed = work.everywhere(planned)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(msgspec.json.decode(passed, type=Inspection).found.files[name]) == size
    assert peak < 3.2 * size, f"{peak / size:.1f} times"


def answer_of(found: bytes, reply: bytes = b'""') -> bytes:
    """What a node sends, of which any part may be a lie."""
    return b'{"schema":"mldebug.peer/1","version":"1","found":%b,"reply":%b}' % (found, reply)


def many(one: bytes) -> bytes:
    """So often, with commas between, that it is larger than what ranks can have to say."""
    return b",".join([one] * (2 * MAX_WORDS // len(one)))


LIES = {
    "a rank a hundred thousand times": b'{"profiles":[%b]}' % many(b'{"rank":0,"pid":0}'),
    "operators": b'{"profiles":[{"rank":0,"pid":0,"trace":{"operators":[%b]}}]}' % many(b'{"name":"","microseconds":0,"count":0}'),
    "places": b'{"profiles":[{"rank":0,"pid":0,"samples":{"places":[%b]}}]}' % many(b'["",0]'),
    "a word": b'{"profiles":[{"rank":0,"pid":0,"failure":"%b"}]}' % (b"<b>" * MAX_WORDS),
    "lines that hold memory": b'{"memory":[{"rank":0,"pid":0,"found":{"at":0,"requested":0,"capacity":0,"free":0,"holders":{"lines":[%b]}}}]}' % many(b'{"place":"","phase":"","memory_bytes":0}'),
    "both": b'{"profiles":[%b],"memory":[%b]}' % ((b'{"rank":0,"pid":0}' + b" " * (MAX_WORDS // 2),) * 2),
    "files": b'{"files":{%b}}' % b",".join(b'"%07d":""' % one for one in range(99_999)),
    "a number": b'{"profiles":[{"rank":0,"pid":%d}]}' % 10**200,
    "a size": b'{"memory":[{"rank":0,"pid":0,"found":{"at":0,"requested":0,"capacity":%d,"free":0}}]}' % 10**300,
    "a time": b'{"profiles":[{"rank":0,"pid":0,"cost_seconds":1e308}]}',
    "no struct": b"[]",
    "deep": b'{"x":%b}' % (b"[" * 99_999),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_what_no_ranks_can_have_to_say_costs_nearly_nothing_and_the_other_nodes_nothing(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of 52 MiB that is all list items took 2 GiB of the agent that asked, and 14 s."""
    good = InspectedRanks(profiles=(profile(4),), files={TRACE.format(4): b"0"})
    sent = {"n1": answer_of(LIES[lie]), "n2": msgspec.json.encode(NodeInspection(found=good))}
    monkeypatch.setattr(inspections, "broadcast", FakeNodes(sent).broadcast)
    planned = plan(order("0,4"), call(n1="0-3", n2="4-7"), "")
    tracemalloc.start()
    try:
        passed = Inspections(cast("Any", None), no_inspector).everywhere(planned)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    ranks = msgspec.json.decode(passed, type=Inspection).found.ranks
    assert [(one.rank, bool(one.failure)) for one in ranks] == [(0, True), (4, False)]
    assert peak < MAX_WORDS, f"{peak / MAX_WORDS:.1f} times"


def test_the_largest_that_16_ranks_have_to_say_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels made of templates have names of thousands of characters."""
    share = Share(name="void cutlass::Kernel<" + "x" * 3000, microseconds=1.0, count=1)
    summary = ProfileSummary(span=1.0, operators=(share,) * 8, kernels=(share,) * 8)
    good = InspectedRanks(
        profiles=tuple(profile(rank, trace=summary) for rank in range(16)),
        files={TRACE.format(rank): bytes(1000) for rank in range(16)},
    )
    sent = {"n1": msgspec.json.encode(NodeInspection(found=good, reply=bytes(MAX_BYTES)))}
    monkeypatch.setattr(inspections, "broadcast", FakeNodes(sent).broadcast)
    planned = plan(order("0-15"), call(n1="0-15"), "")
    passed = Inspections(cast("Any", None), no_inspector).everywhere(planned)
    found = msgspec.json.decode(passed, type=Inspection)
    assert not found.found.failed
    assert len(found.found.files) == 16
    assert len(found.replies["n1"]) == MAX_BYTES


def test_a_capture_that_is_too_large_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    good = InspectedRanks(profiles=(profile(0),))
    sent = {"n1": msgspec.json.encode(NodeInspection(found=good, reply=bytes(MAX_BYTES + 1)))}
    monkeypatch.setattr(inspections, "broadcast", FakeNodes(sent).broadcast)
    planned = plan(order("0"), call(n1="0-3"), "")
    passed = Inspections(cast("Any", None), no_inspector).everywhere(planned)
    found = msgspec.json.decode(passed, type=Inspection)
    assert found.replies == {}
    assert [one.failure for one in found.found.ranks] == [""]


def test_names_of_phases_are_cleaned_and_lists_are_cut() -> None:
    lines = (HeldLine(place="a", phase="b", memory_bytes=1),) * 9999
    holders = MemoryHolders(allocated=1, lines=lines, phases={"\x1b]0;title\x07forward": 1})
    failure = MemoryFailure(at=0.0, requested=0, capacity=1, free=0, holders=holders)
    sent = InspectedRanks(memory=(RankHolders(rank=0, pid=7, found=failure),))
    found = believed(sent, (0,), "n1")
    assert "\x1b" not in found.text()
    assert "\x07" not in found.text()
    (one,) = found.memory
    assert one.found is not None
    assert len(one.found.holders.lines) < 300


def test_a_node_never_sends_more_than_it_was_asked_for_and_tells_why_nothing_came() -> None:
    limits: list[int] = []

    def inspect(job: Any, ranks: str, options: Any, most: int, gone: Any) -> InspectionOutcome:
        limits.append(most)
        return InspectionOutcome(error="rank 0 still works on an earlier request")

    work = Inspections(cast("Any", None), inspect)
    for most in (-5, 1000, 1 << 60):
        part = part_of(msgspec.structs.replace(node_order(None), most=most), run(), "n1")
        with pytest.raises(MldebugError, match="rank 0 still works"):
            work.here(part)
    assert limits == [0, 1000, MAX_FILES]


class FakeCoordinator:
    """The coordinating agent, which notes what it is asked and answers when it may."""

    coordinators = (Peer("c0", 1),)
    sentence = ""

    def __init__(self) -> None:
        self.orders = list[InspectOrder]()
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def coordinators_of(self, job: str) -> tuple[Peer, ...]:
        return ()

    def ask(self, to: Peer, path: str, body: bytes, **_: object) -> bytes:
        assert path == INSPECT
        self.orders.append(msgspec.json.decode(body, type=InspectOrder))
        self.begun.set()
        self.go.wait(20)
        return b"{}"

    def verb(self) -> Any:
        return peer_verbs(self, self)[INSPECT_PATH]  # type: ignore[arg-type]


def test_a_person_asks_with_the_rights_of_the_process_that_asks() -> None:
    nodes = FakeCoordinator()
    words = {"job": "train", "ranks": "0,5", "what": "profile", "steps": "2", "seconds": "5", "wait": "30.0"}  # fmt: skip
    assert bytes(nodes.verb()({**words, "uid": "0"}, 1000)) == b"{}"
    (sent,) = nodes.orders
    assert (sent.uid, sent.ranks, sent.options.steps, sent.options.wait) == (1000, "0,5", 2, 30.0)


@pytest.mark.parametrize(
    "words",
    [
        {"what": "profile"},
        {"job": "train"},
        {"job": "train", "what": "everything"},
        {"job": "train", "what": "profile", "steps": "0"},
        {"job": "train", "what": "profile", "steps": "21"},
        {"job": "train", "what": "profile", "seconds": "61"},
        {"job": "train", "what": "profile", "wait": "inf"},
        {"job": "train", "what": "profile", "wait": "1e9"},
    ],
)
def test_what_cannot_be_is_asked_of_nobody(words: dict[str, str]) -> None:
    nodes = FakeCoordinator()
    with pytest.raises(UsageError):
        nodes.verb()(words, None)
    assert nodes.orders == []


def test_a_person_who_asks_again_meanwhile_is_told_so() -> None:
    nodes = FakeCoordinator()
    verb, words = nodes.verb(), {"job": "train", "what": "memory"}
    nodes.go.clear()
    first = threading.Thread(target=verb, args=(words, 1000))
    first.start()
    try:
        assert nodes.begun.wait(20)
        with pytest.raises(MldebugError, match="one at a time"):
            verb(words, 1000)
    finally:
        nodes.go.set()
        first.join()
    verb(words, 1000)
