"""What a job or another node names is bounded before it is expanded: nothing of it stops the main loop or the door for peers."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from mldebug.cluster.messages import (
    MAX_MESSAGE,
    Announcement,
    CaptureOrder,
    DumpOrder,
    End,
    Relayed,
    RunNews,
    RunWord,
    Welcome,
    believed,
)
from mldebug.cluster.run_identity import job_key
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.model import Job
from mldebug.incidents.incident import judge
from mldebug.stall.signals import Stage, StallDecision
from mldebug_agents.cluster.peers.controller import MAX_OF_ONE, PeersController
from mldebug_agents.cluster.peers.coordinator_search import FoundCoordinator, candidates
from mldebug_agents.cluster.peers.net.client import Peer
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.system.workers import Result
from unit.cluster.test_peers_controller import JOB, Loop, Silence, of_nodes
from unit.core.test_ranksets import WORST_NODES

KEY = ("env", "", "n1:29500")


def announcement(*runs: RunNews, relayed: tuple[Relayed, ...] = ()) -> Announcement:
    return Announcement(node="n2", agent="a2", port=9754, runs=runs, relayed=relayed)


def of_ranks(ranks: str, world: int = 1_000_000) -> RunNews:
    return RunNews(key=KEY, world_size=world, ranks=ranks)


@contextmanager
def cheap(seconds: float, size: int) -> Iterator[None]:
    """At most so much processor time, and so many bytes at one moment."""
    tracemalloc.start()
    begun = time.process_time()
    yield
    used, (_, most) = time.process_time() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < seconds
    assert most < size


@pytest.mark.parametrize("nodes", WORST_NODES.values(), ids=WORST_NODES.keys())
def test_the_worst_node_list_of_one_job_leaves_the_others_their_coordinator(nodes: str) -> None:
    """`n[1-60000]x[1-60000]y[1-60000]z[1-60000]` ended the agent by an OverflowError, and 8 KB of spans hung it for a minute."""
    loop = Loop((), (of_nodes("a", nodes, "n7:29500"), of_nodes("b", "n[1-2]")))
    with cheap(10.0, 16 << 20):
        loop.members.tick(loop.runs)
    hosts = [[peer.host for peer in group.candidates] for group in loop.members._groups]
    assert ["n1", "n2"] in hosts
    assert ["n7"] in hosts


def test_a_list_of_more_nodes_than_can_be_asked_is_not_expanded() -> None:
    with cheap(2.0, 1 << 20):
        assert candidates(of_nodes("a", "n[1-65000]", "n7:1"), 9754) == (Peer("n7", 9754),)


def test_all_ranks_of_a_million_in_each_run_of_a_message_cost_nothing() -> None:
    """One `0-999999` took 3.6 s of the event loop, and a message of 1 MiB holds 116,000 of them."""
    runs = tuple(of_ranks("0-999999") for _ in range(256))
    with cheap(5.0, 8 << 20):
        assert believed(announcement(*runs)).runs[0].ranks == "0-999999"


@pytest.mark.parametrize(
    "ranks",
    [
        "0-999999," * 116_000 + "1", "0-999999/2", "0-9999999999999999999", "5-1", "1-2-3", "," * 9, "a",
        "\u0661-\u0669", "0-8", "-1", "0-" + "9" * 100_000,
    ],
)  # fmt: skip
def test_ranks_that_cannot_be_are_refused_with_one_error(ranks: str) -> None:
    with cheap(5.0, 8 << 20), pytest.raises(EvidenceError):
        believed(announcement(of_ranks(ranks, world=8)))
    runs = (of_ranks(ranks, 8),)
    relayed = Relayed(node="n3", agent="a3", port=9754, address="10.0.0.3", runs=runs)
    with cheap(5.0, 8 << 20), pytest.raises(EvidenceError):
        believed(announcement(relayed=(relayed,)))


def test_a_message_full_of_single_ranks_is_cheap() -> None:
    ranks = ",".join(str(rank) for rank in range(0, 8_000, 2))[:30_000].rpartition(",")[0]
    runs = tuple(of_ranks(ranks) for _ in range(MAX_MESSAGE // len(ranks)))
    data = msgspec.json.encode(announcement(*runs))
    assert len(data) > MAX_MESSAGE * 0.9
    with cheap(10.0, 64 << 20):
        believed(msgspec.json.decode(data, type=Announcement))


def test_one_node_s_flood_of_questions_leaves_room_for_others() -> None:
    loop = Loop()
    answers = [loop.members.ask(None, "10.0.0.66") for _ in range(2000)]
    assert sum(not one.done() for one in answers) == MAX_OF_ONE
    other = loop.members.ask(None, "10.0.0.2")
    while not other.done():
        found = loop.inbox.get(timeout=60)
        assert found is not None
        loop.members.on_result(found)
    assert other.result().coordinator == "n1"
    with pytest.raises(MldebugError, match="too many"):
        answers[-1].result()
    assert not loop.members.ask(None, "10.0.0.66").done()  # its first were answered


def test_an_error_of_ours_is_an_answer_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()

    def broken(*_: Any) -> None:
        raise OverflowError("cannot fit 'int' into an index-sized integer")

    monkeypatch.setattr(loop.members.leader, "dump", broken)
    answer = loop.members.ask(DumpOrder(job=JOB.name), "10.0.0.2")
    loop.take("question")
    with pytest.raises(MldebugError, match="OverflowError"):
        answer.result()


# --- ids of incidents ------------------------------------------------------------------------------


class Reports:
    """A state store without a disk; `stored`: reports of an earlier agent."""

    def __init__(self, *stored: str) -> None:
        self.earlier_reports = frozenset(stored)
        self.written: list[str] = []
        self.opened = True

    def report(self, report_id: str, work: object, uid: int = 0) -> None:
        self.written.append(report_id)

    def memos(self, beginning: str) -> tuple[str, ...]:
        return ()

    def keep(self, *_: object) -> None: ...

    def prune(self) -> None: ...

    def remember(self, *_: object) -> None: ...


def owned(uid: int, job_id: str) -> Job:
    return msgspec.structs.replace(of_nodes(job_id, "n[1-2]", "n1:29500"), uid=uid)


class Node(Loop):
    """A main loop with the real incidents of two users."""

    def __init__(self, *stored: str) -> None:
        super().__init__((Peer("n2", 1),), (owned(2001, "a"), owned(2002, "b")))
        self.store = Reports(*stored)
        self.incidents = IncidentManager(self.store)  # type: ignore[arg-type]
        self.members = PeersController(
            "n1", 9754, Silence(), (Peer("n2", 1),), 1.0, self.inbox, self.incidents, self._capture  # type: ignore[arg-type]
        )  # fmt: skip
        self.members.tick(self.runs)
        decision = StallDecision(stage=Stage.BLAMED, sentence="no step", key="k")
        self.incidents.open(self.runs["b"], decision)
        self.incidents.unseen(self.runs["b"])

    @property
    def known(self) -> str:
        """The id of the report of the other user."""
        assert self.runs["b"].incident is not None
        return self.runs["b"].incident.id


def order_of(node: Node, job: str, incident: str) -> CaptureOrder:
    return CaptureOrder(key=job_key(node.runs[job].job, "n1"), attempt=0, incident=incident)


@pytest.mark.parametrize("incident", ["", "20261101T000000Z-old", "20261101T000000Z-job-manual"])
def test_an_order_under_the_id_of_another_run_is_refused_and_said(incident: str) -> None:
    """B's report became A's: owner and content were replaced."""
    node = Node("20261101T000000Z-old")
    before = list(node.store.written)
    answer = node.ask(order_of(node, "a", incident or node.known))
    with pytest.raises(MldebugError, match="which another run has"):
        answer.result(timeout=0)
    assert node.runs["a"].incident is None
    assert node.store.written == before
    assert node.members.refusals.counts["incident"] == 1


def test_an_order_of_the_same_run_or_under_a_new_id_is_obeyed() -> None:
    node = Node()
    node.ask(order_of(node, "b", node.known))
    node.ask(order_of(node, "a", "20261126T000000Z-new"))
    assert node.runs["a"].incident is not None
    assert node.runs["a"].incident.id == "20261126T000000Z-new"
    assert node.ordered == 2
    with pytest.raises(MldebugError, match="which another run has"):
        node.ask(order_of(node, "b", "20261126T000000Z-new")).result(timeout=0)


def told_of(node: Node, job: str, **more: Any) -> Announcement:
    news = RunNews(key=job_key(node.runs[job].job, "n1"), world_size=8, ranks="4-7", stage="blamed")
    return announcement(msgspec.structs.replace(news, **more))


def test_a_coordinator_takes_no_id_of_another_run_from_an_announcement() -> None:
    node = Node()
    leader = node.members.leader
    leader.welcome(told_of(node, "a", incident=node.known, published=True), "10.0.0.2", 1.0)
    assert list(leader._coordinator.due(2.0)) == []
    assert node.members.refusals.counts["incident"] >= 1
    leader.welcome(told_of(node, "a", incident="20261126T000000Z-new"), "10.0.0.2", 3.0)
    (call,) = leader._coordinator.due(4.0)
    assert call.incident == "20261126T000000Z-new"


def test_a_false_end_with_the_id_of_another_run_causes_nothing() -> None:
    node = Node()
    leader, diagnosis = node.members.leader, judge(node.runs["b"].incident).diagnosis  # type: ignore[arg-type]
    end = End(incident=node.known, diagnosis=diagnosis, age=0.5)
    leader.welcome(
        told_of(node, "a", incident="20261126T000000Z-new", age=100.0, end=end), "10.0.0.2", 1.0
    )
    (call,) = leader._coordinator.due(2.0)
    assert (call.incident, call.cause) == ("20261126T000000Z-new", None)


def test_a_coordinator_s_answer_gives_no_run_the_id_of_another() -> None:
    node = Node()
    node.incidents.open(
        node.runs["a"], StallDecision(stage=Stage.BLAMED, sentence="no step", key="k2")
    )
    own = node.runs["a"].incident
    word = RunWord(key=job_key(node.runs["a"].job, "n1"), incident=node.known, caused=True)
    told = node.members._announcement(next(iter(node.members._groups)), 0.0)
    found = FoundCoordinator(Peer("n2", 1), Welcome(node="n2", agent="other", runs=(word,)))
    node.members.on_result(Result("members", told, found, None))
    assert node.runs["a"].incident == own
