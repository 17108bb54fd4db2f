"""What a job or another node names is bounded before it is expanded: nothing of it stops the main loop or the door for peers."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from mldebug.capture.inspection import InspectionOptions
from mldebug.cluster.coordinator import Coordinator
from mldebug.cluster.inspection import NodeInspectOrder
from mldebug.cluster.messages import (
    MAX_MESSAGE,
    MAX_SIGNALS,
    AnnouncedExit,
    Announcement,
    CaptureOrder,
    DumpOrder,
    Relayed,
    RunNews,
    RunWord,
    Signal,
    Welcome,
    believed,
)
from mldebug.cluster.roster import FRESH, SLOWEST, PeerRoster
from mldebug.cluster.run_identity import job_key, run_id
from mldebug.cluster.source_shares import (
    MAX_BYTES,
    MAX_CALLS,
    MAX_OF_USER,
    MAX_PEERS,
    WINDOW,
    CallBudget,
    source_of,
)
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.model import Job
from mldebug.incidents.judge import judge
from mldebug.stall.signals import Stage, StallDecision
from mldebug_agents.cluster.peers.controller import MAX_OF_ONE, PeersController
from mldebug_agents.cluster.peers.coordinator_search import FoundCoordinator, candidates
from mldebug_agents.cluster.peers.net.client import Peer
from mldebug_agents.cluster.peers.remote_orders import MOST, MOST_INSPECTED, OrderLimit
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.system.workers import Result
from unit.cluster.test_peers_controller import CAPTURE, JOB, Loop, Silence, of_nodes
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
    with cheap(10.0, 64 << 20), pytest.raises(EvidenceError, match="intervals"):
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


def test_a_flood_from_all_addresses_of_a_network_of_ipv6_is_the_flood_of_one_node() -> None:
    """With 32 of its addresses it had all 1,024 places, and nobody else was heard."""
    loop = Loop()
    answers = [loop.members.ask(None, f"2001:db8::{number:x}") for number in range(2000)]
    assert sum(not one.done() for one in answers) == MAX_OF_ONE
    assert not loop.members.ask(None, "2001:db8:0:1::1").done()
    for _ in range(MAX_OF_ONE):
        found = loop.inbox.get(timeout=60)
        assert found is not None
        loop.members.on_result(found)
    assert not loop.members.ask(None, "2001:db8::1").done()  # its first were answered


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

    def report(self, report_id: str, work: object, *_: object) -> None:
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


def announced(node: Node, job: str, **more: Any) -> Announcement:
    news = RunNews(key=job_key(node.runs[job].job, "n1"), world_size=8, ranks="4-7", stage="blamed")
    return announcement(msgspec.structs.replace(news, **more))


def test_a_coordinator_takes_no_id_of_another_run_from_an_announcement() -> None:
    node = Node()
    leader = node.members.leader
    leader.welcome(announced(node, "a", incident=node.known, published=True), "10.0.0.2", 1.0)
    assert list(leader._coordinator.due(2.0)) == []
    assert node.members.refusals.counts["incident"] >= 1
    leader.welcome(announced(node, "a", incident="20261126T000000Z-new"), "10.0.0.2", 3.0)
    (call,) = leader._coordinator.due(4.0)
    assert call.incident == "20261126T000000Z-new"


def test_a_false_end_with_the_id_of_another_run_causes_nothing() -> None:
    node = Node()
    leader, diagnosis = node.members.leader, judge(node.runs["b"].incident).diagnosis  # type: ignore[arg-type]
    end = AnnouncedExit(incident=node.known, diagnosis=diagnosis, age=0.5)
    leader.welcome(
        announced(node, "a", incident="20261126T000000Z-new", age=100.0, end=end), "10.0.0.2", 1.0
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
    result = node.members._announcement(next(iter(node.members._groups)), 0.0)
    found = FoundCoordinator(Peer("n2", 1), Welcome(node="n2", agent="other", runs=(word,)))
    node.members.on_result(Result("members", result, found, None))
    assert node.runs["a"].incident == own


# --- how much one node makes a coordinator remember ---------------------------------------------------


EVIL, HONEST = "10.0.0.66", "10.0.0.2"


def of_node(node: str, *runs: RunNews, agent: str = "") -> Announcement:
    return Announcement(node=node, agent=agent or node, port=9754, runs=runs)


def long_runs(count: int) -> tuple[RunNews, ...]:
    """About 10 KB each."""
    return tuple(
        RunNews(key=("env", "", f"n{one}:1"), ranks="0", node_list="x" * 8000, sentence="s" * 500)
        for one in range(count)
    )


def test_one_address_with_thousands_of_names_pushes_out_its_own_alone() -> None:
    """It filled the 8,192 places for an hour: whoever came then was refused."""
    roster = PeerRoster()
    roster.update(of_node("honest"), HONEST, 1.0)
    for number in range(MAX_PEERS + 50):
        roster.update(of_node(f"evil{number}"), EVIL, 2.0)
    roster.update(of_node("another"), "10.0.0.3", 3.0)
    known = roster.fresh(4.0)
    assert len(known) == MAX_PEERS
    assert {"honest", "another"} <= set(known)


def test_what_one_address_announces_has_no_more_than_its_bytes() -> None:
    """400 names with a message of 1 MiB each took a coordinator from 61 to 435 MiB, and 8,192 may have one."""
    roster, runs = PeerRoster(), long_runs(100)
    roster.update(of_node("honest", *long_runs(1)), HONEST, 1.0)
    for number in range(200):
        roster.update(of_node(f"evil{number}", *runs), EVIL, 2.0)
    view = roster.view("n1", (), 3.0)
    assert sum(len(msgspec.json.encode(peer)) for peer in view.peers) < 1.1 * MAX_BYTES
    assert "honest" in roster.fresh(3.0)


def test_what_one_node_relays_counts_as_what_it_announces() -> None:
    roster = PeerRoster()
    roster.update(of_node("honest"), HONEST, 1.0)
    for number in range(MAX_PEERS // 16 + 8):
        some = tuple(
            Relayed(node=f"r{number}-{one}", agent="x", port=1, address=f"10.1.{number % 250}.{one}")
            for one in range(16)
        )  # fmt: skip
        announced = msgspec.structs.replace(of_node("evil"), relayed=some)
        roster.update(announced, EVIL, 2.0)
        roster.update_relayed(announced, 2.0, EVIL)
    for number in range(100):
        roster.update(of_node(f"n{number}"), f"10.0.1.{number}", 3.0)
    known = set(roster.fresh(4.0))
    assert {"honest", *(f"n{number}" for number in range(100))} <= known


def test_many_names_of_one_address_slow_down_its_own_announcements_alone() -> None:
    """1,000 names had all others announce every 20 s, so that what they saw came as late."""
    roster = PeerRoster()
    for number in range(20):
        roster.update(of_node(f"n{number}"), f"10.0.0.{number}", 1.0)
    before = roster.pace_of("10.0.0.3")
    for number in range(5000):
        roster.update(of_node(f"evil{number}"), "10.0.9.9", 1.0)
    assert roster.pace_of("10.0.0.3") < 1.1 * before
    assert roster.pace_of("10.0.9.9") == SLOWEST
    assert "n3" in roster.fresh(1.0 + FRESH)
    assert "n3" not in roster.fresh(1.0 + FRESH + 2.0)


def test_a_node_of_ipv6_has_one_share_whatever_address_of_its_network_it_uses() -> None:
    assert source_of("2001:db8:0:1::1") == source_of("2001:db8:0:1:ffff::2")
    assert source_of("2001:db8:0:1::1") != source_of("2001:db8:0:2::1")
    assert source_of("::ffff:10.0.0.1") == source_of("10.0.0.1")
    assert source_of("10.0.0.1") != source_of("10.0.0.2")


@pytest.mark.parametrize("attempt", [-1, 10**20])
def test_an_attempt_that_cannot_be_is_refused(attempt: int) -> None:
    with pytest.raises(EvidenceError):
        believed(announcement(msgspec.structs.replace(of_ranks("0", 8), attempt=attempt)))


@pytest.mark.parametrize("step", [10**20, -(10**20)])
def test_a_step_that_cannot_be_is_left_out_alone(step: int) -> None:
    """It stands in the log of one job: the others of the node are announced all the same."""
    runs = (
        msgspec.structs.replace(of_ranks("0", 8), step=step, age=-1.0),
        msgspec.structs.replace(of_ranks("1", 8), attempt=1),
    )
    first, second = believed(announcement(*runs)).runs
    assert (first.step, first.age, second.ranks) == (None, 0.0, "1")


def test_signs_of_progress_of_a_run_are_few_and_clean() -> None:
    """35,000 of them fit into one message, and went on to all nodes of the run as they were."""
    many = tuple(Signal(kind=f"\x1b[2J{one}", value=1.0, age=0.0) for one in range(35_000))
    (news,) = believed(announcement(msgspec.structs.replace(of_ranks("0", 8), signals=many))).runs
    assert len(news.signals) == MAX_SIGNALS
    assert not any("\x1b" in signal.kind for signal in news.signals)


# --- ranks of another node ------------------------------------------------------------------------------


def moving(ranks: str, step: float = 7.0, **more: Any) -> RunNews:
    signals = (Signal(kind="step", value=step, age=0.0),)
    return RunNews(key=KEY, world_size=8, ranks=ranks, signals=signals, **more)


def words_for(coordinator: Coordinator, node: str, ranks: str, now: float) -> RunWord:
    return coordinator.word(msgspec.structs.replace(moving(ranks), signals=()), node, now)


def test_who_announces_the_ranks_of_another_node_is_not_believed_that_they_move() -> None:
    """A stall was hidden for ever: the liar's steps counted where the node of the ranks saw none."""
    coordinator = Coordinator()
    coordinator.update(of_node("n1", msgspec.structs.replace(moving("0-3"), signals=())), HONEST, 1.0)  # fmt: skip
    coordinator.update(of_node("liar", moving("2-7")), EVIL, 2.0)
    assert words_for(coordinator, "n1", "0-3", 2.0).signals == ()
    assert "as n1 does" in coordinator.refused[EVIL]
    coordinator.update(of_node("n2", moving("4-7")), "10.0.0.3", 3.0)  # the ranks are free
    assert len(words_for(coordinator, "n1", "0-3", 3.0).signals) == 1


def test_who_relays_the_ranks_of_another_node_is_not_believed_either() -> None:
    coordinator = Coordinator()
    coordinator.update(of_node("n1", moving("0-3")), HONEST, 1.0)
    relayed = Relayed(node="far", agent="x", port=1, address="10.0.0.9", runs=(moving("0-7"),))
    changed = msgspec.structs.replace(of_node("liar"), relayed=(relayed,))
    coordinator.update(changed, EVIL, 2.0)
    coordinator.update_relayed(changed, 2.0, EVIL)
    (call,) = coordinator.named(run_id(KEY))
    assert [peer.announcement.node for peer in call.peers] == ["n1"]


def test_ranks_that_have_moved_to_another_node_are_that_node_s() -> None:
    coordinator = Coordinator()
    coordinator.update(of_node("n1", moving("0-3")), HONEST, 1.0)
    coordinator.update(of_node("n2", moving("4-7")), "10.0.0.3", 1.0)
    coordinator.update(of_node("n1", moving("4-7")), HONEST, 2.0)  # not yet: n2 still shows them
    assert "as n2 does" in coordinator.refused[HONEST]
    coordinator.update(of_node("n2", moving("0-3")), "10.0.0.3", 3.0)
    coordinator.update(of_node("n1", moving("4-7")), HONEST, 4.0)
    assert coordinator.refused == {}
    coordinator.update(of_node("n3", moving("4-7")), "10.0.0.4", 5.0 + FRESH)  # n1 is silent
    assert coordinator.refused == {}


def test_another_attempt_of_the_run_may_have_the_same_ranks_elsewhere() -> None:
    coordinator = Coordinator()
    coordinator.update(of_node("n1", moving("0-3")), HONEST, 1.0)
    coordinator.update(of_node("n2", moving("0-3", attempt=1)), "10.0.0.3", 2.0)
    assert coordinator.refused == {}


def test_a_thousand_nodes_and_their_ranks_are_compared_in_no_time() -> None:
    roster = PeerRoster()
    with cheap(20.0, 64 << 20):
        for _ in range(3):
            for node in range(2000):
                ranks = f"{8 * node}-{8 * node + 7}"
                news = RunNews(key=KEY, world_size=16_000, ranks=ranks)
                roster.update(of_node(f"n{node}", news), f"10.1.{node // 250}.{node % 250}", 1.0)
    assert roster.refused == {}


def test_signs_of_progress_of_who_has_no_rank_are_left_out() -> None:
    (news,) = believed(announcement(moving(""))).runs
    assert news.signals == ()


def test_a_storm_of_inspections_takes_few_profiles_and_is_said() -> None:
    """Any node with the key could have a healthy run profiled without a pause, each profile of which costs its ranks time."""
    loop, key = Loop(), job_key(JOB, "n1")
    loop.members.tick({JOB.id: loop.run})
    order = NodeInspectOrder(key=key, attempt=0, ranks={"n1": "0"}, options=InspectionOptions(what="profile"))  # fmt: skip
    answers = [loop.ask(order) for _ in range(40)]
    assert [one.exception(0) for one in answers[:MOST_INSPECTED]] == [None] * MOST_INSPECTED
    with pytest.raises(MldebugError, match="in 600 s"):
        answers[MOST_INSPECTED].result(0)
    assert loop.members.refusals.counts["storm"] == 40 - MOST_INSPECTED
    other = loop.members.ask(order, "10.0.0.7")
    loop.take("question")
    assert other.exception(0) is None  # who has not stormed is answered


def test_an_order_counts_for_so_long_and_for_its_source_alone() -> None:
    limit = OrderLimit(2, 60.0)
    assert [limit.take("run", "a", float(now)) for now in (0, 1, 2)] == [True, True, False]
    assert [limit.take(*one, 3.0) for one in (("run", "b"), ("other", "a"))] == [True, True]
    assert [limit.take("run", "a", now) for now in (60.5, 60.6, 61.5)] == [True, False, True]


def test_a_storm_of_orders_takes_few_captures_and_is_said() -> None:
    """Under a new id each, 1,290 orders in 40 s had a healthy run captured without a pause."""
    loop, key = Loop(), job_key(JOB, "n1")
    loop.members.tick({JOB.id: loop.run})
    answers = []
    for number in range(40):
        order = CaptureOrder(key=key, attempt=0, incident=f"storm-{number}")
        answers.append(loop.ask(order))
        loop.members.captured(loop.run, CAPTURE)
    assert loop.ordered == MOST
    with pytest.raises(MldebugError, match="in 60 s"):
        answers[-1].result(0)
    assert loop.members.refusals.counts["storm"] == 40 - MOST
    other = loop.members.ask(CaptureOrder(key=key, attempt=0, incident="true"), "10.0.0.7")
    loop.take("question")
    assert loop.ordered == MOST + 1  # who has not stormed is answered
    assert not other.done()


def test_stalls_that_one_address_invents_cause_few_captures() -> None:
    """60 new ones in each message of one node had 14,000 lines written into the log of the coordinator in half a minute."""
    coordinator, calls = Coordinator(), []
    for turn in range(20):
        runs = tuple(
            moving("0", incident=f"i{turn}-{one}", stage="blamed", attempt=0)
            for one in range(60)
        )  # fmt: skip
        keyed = tuple(
            msgspec.structs.replace(news, key=("env", str(turn), str(one), f"uid {one}"))
            for one, news in enumerate(runs)
        )
        coordinator.update(of_node(f"evil{turn}", *keyed), EVIL, 1.0)
        calls += coordinator.due(1.0 + turn)
    assert len(calls) == MAX_CALLS
    honest = moving("0", incident="true", stage="blamed")
    coordinator.update(of_node("n2", honest), HONEST, 22.0)
    (call,) = coordinator.due(22.0)
    assert call.incident == "true"


def test_one_user_s_stalls_leave_calls_for_those_of_another_on_the_same_node() -> None:
    budget = CallBudget()
    assert sum(budget.take("10.0.0.2", "uid 1", 1.0) for _ in range(100)) == MAX_OF_USER
    assert budget.take("10.0.0.2", "uid 2", 1.0)
    assert budget.take("10.0.0.2", "uid 1", 1.0 + WINDOW)
