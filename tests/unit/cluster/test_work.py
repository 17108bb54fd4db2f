"""What the messages of one node may cost an agent: time of the main loop and of the door, and memory."""

import time
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from mldebug.cluster.coordinator import Coordinator
from mldebug.cluster.merge import NodeReplies, merge
from mldebug.cluster.messages import (
    MAX_PACE,
    MAX_PRESENT,
    MAX_RUNS,
    MAX_SPANS,
    AnnouncedExit,
    CaptureOrder,
    Relayed,
    RunNews,
    RunWord,
    Welcome,
    WordsFor,
    believed,
    believed_welcome,
)
from mldebug.cluster.roster import PeerRoster
from mldebug.cluster.run_identity import job_key, run_id
from mldebug.cluster.source_shares import MAX_BYTES, RUN_BYTES, source_of
from mldebug.cluster.wire import NodeReply
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.model import Confidence, Diagnosis, Verdict
from mldebug_agents.cluster.peers import leader
from mldebug_agents.cluster.peers.coordinator_search import FoundCoordinator
from mldebug_agents.cluster.peers.net.client import Peer
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.net.work_budget import WORK, WORK_RATE, WorkBudget
from mldebug_agents.cluster.peers.openapi import ANNOUNCE
from mldebug_agents.cluster.peers.routes import app
from mldebug_agents.system.workers import Result
from shared.cluster.nodes import run as captures_of
from unit.cluster.test_bounds import EVIL, HONEST, KEY, cheap, of_node, of_ranks
from unit.cluster.test_peers_controller import Loop, of_nodes

EXITED = Diagnosis(
    verdict=Verdict.RANK_EXITED,
    confidence=Confidence.HIGH,
    culprits=(),
    summary="a rank has exited",
    evidence=(),
    next_steps=(),
)


def named(key: str, **more: Any) -> RunNews:
    return RunNews(key=("env", key), **more)


def test_a_run_that_stands_in_a_message_many_times_is_looked_at_once() -> None:
    """256 times one run with 2,000 names of nodes: the main loop stood still for 5 s at each such message of 10 KB."""
    loop = Loop((Peer("n1", 1),))
    for number in range(2000):
        loop.members.leader.welcome(of_node(f"e{number}", named("k", launchers=64)), EVIL, 1.0)
    same = tuple(named("k", launchers=64, stage="blamed", incident="x") for _ in range(MAX_RUNS))
    relayed = tuple(
        Relayed(node="far", agent="x", port=1, address="10.0.0.9", runs=same) for _ in range(16)
    )
    message = believed(msgspec.structs.replace(of_node("e0", *same), relayed=relayed))
    assert (len(message.runs), len(message.relayed), len(message.relayed[0].runs)) == (1, 1, 1)
    with cheap(1.0, 16 << 20):
        welcome = loop.members.leader.welcome(message, EVIL, 2.0)
    assert len(welcome.runs[0].present) == MAX_PRESENT


def test_two_attempts_of_a_run_are_two_in_a_message_and_stay_in_their_order() -> None:
    runs = (named("b", attempt=1), named("a"), named("b", attempt=0), named("a", step=3))
    found = believed(of_node("n2", *runs)).runs
    assert [(one.key[1], one.attempt) for one in found] == [("b", 1), ("a", 0), ("b", 0)]


def scattered(count: int, first: int = 0) -> str:
    return ",".join(str(rank) for rank in range(first, first + 2 * count, 2))


def test_ranks_in_more_intervals_than_a_node_has_are_refused() -> None:
    """Two messages of 1 MiB in turn, even ranks and odd ones, took 2 s of the main loop each."""
    runs = tuple(
        named(f"k{one}", ranks=scattered(3000), world_size=100_000) for one in range(MAX_SPANS // 3000 + 1)
    )  # fmt: skip
    with pytest.raises(EvidenceError, match="intervals"):
        believed(of_node("evil", *runs))
    relayed = Relayed(node="far", agent="x", port=1, address="10.0.0.9", runs=runs)
    with pytest.raises(EvidenceError, match="intervals"):
        believed(msgspec.structs.replace(of_node("evil"), relayed=(relayed,)))


def test_ranks_that_are_dealt_out_in_turn_are_believed_and_change_cheaply() -> None:
    roster = PeerRoster()
    with cheap(2.0, 16 << 20):
        for first in (0, 1, 0, 1):
            run = msgspec.structs.replace(of_ranks(scattered(4000, first)), world_size=8002)
            roster.update(believed(of_node("n2", run)), HONEST, 1.0)
    (shown,) = roster.view("n1", (), 1.0).peers
    assert shown.runs[0].ranks.startswith("1,3,5")


def test_short_runs_by_the_thousand_take_no_more_memory_than_long_ones() -> None:
    """Of 80 bytes each 1,700,000 had room, took 3 GB, and 2 s of the main loop every half second."""
    roster, most = PeerRoster(), MAX_BYTES // RUN_BYTES
    roster.update(of_node("honest", named("h", ranks="0")), HONEST, 1.0)
    for node in range(most // MAX_RUNS + 100):
        runs = (named(f"{node}-{one}", ranks="0", stage="blamed") for one in range(MAX_RUNS))
        roster.update(of_node(f"evil{node}", *runs), EVIL, 2.0)
    assert sum(len(peer.runs) for peer in roster.view("n1", (), 2.0).peers) <= most
    assert {"honest", f"evil{most // MAX_RUNS + 99}"} <= set(roster.fresh(2.0))


def test_what_a_node_announces_in_many_groups_counts_as_well() -> None:
    """Only what stood in one message counted: 64 groups of a name had 64 MiB, and 8,192 names may have as many."""
    roster = PeerRoster()
    for node in range(8):
        for group in range(40):
            runs = (named(f"{group}-{one}", node_list="x" * 8000) for one in range(100))
            message = msgspec.structs.replace(of_node(f"evil{node}", *runs), circle=f"g{group}")
            roster.update(message, EVIL, 2.0)
    held = sum(part.size for peer in roster._peers.values() for part in peer.parts.values())
    assert 0 < held <= MAX_BYTES


def test_words_end_when_the_time_of_a_message_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop((Peer("n1", 1),))
    several = of_node("n2", named("a", incident="x", launchers=1), named("b", launchers=1))
    (first, second) = loop.members.leader.welcome(several, HONEST, 1.0).runs
    assert first.present == second.present == ("n2",)
    monkeypatch.setattr(leader, "WORDS", 0.0)
    assert loop.members.leader.welcome(several, HONEST, 1.0).runs == (
        RunWord(key=("env", "a")),
        RunWord(key=("env", "b")),
    )


def test_looks_at_all_nodes_take_a_tenth_of_the_main_loop_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead, looks = Loop((Peer("n1", 1),)).members.leader, []

    def look(now: float) -> None:
        looks.append(now)
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    monkeypatch.setattr(lead, "_look", look)
    for tenth in range(40):
        lead.tick(100.0 + tenth / 10)
    assert 2 <= len(looks) <= 3


# --- the answer of a coordinator that lies -----------------------------------------------------------


def test_words_on_runs_that_nobody_has_asked_for_cost_nothing() -> None:
    """A job names its coordinator: 600,000 words in an answer of 8 MiB cost the main loop a look at all runs each."""
    jobs = tuple(of_nodes(f"j{one}", "n[1-2]", f"n1:{one + 1}") for one in range(100))
    loop = Loop((Peer("n2", 1),), jobs)
    loop.members.tick(loop.runs)
    words = tuple(RunWord(key=("x", str(one))) for one in range(100_000))
    relayed = (WordsFor(node="far", runs=words),)
    answer = believed_welcome(Welcome(node="n2", agent="evil", runs=words, relayed=relayed))
    assert (len(answer.runs), len(answer.relayed[0].runs)) == (MAX_RUNS, MAX_RUNS)
    announced = loop.members._announcement(next(iter(loop.members._groups)), 0.0)
    found = FoundCoordinator(
        Peer("n2", 1), Welcome(node="n2", agent="evil", runs=words[: MAX_RUNS * 8])
    )
    with cheap(1.0, 16 << 20):
        loop.members.on_result(Result("members", announced, found, None))


@pytest.mark.parametrize(("pace", "taken"), [(-1e308, 0.0), (1e308, MAX_PACE), (20.0, 20.0)])
def test_a_pace_that_cannot_be_is_brought_within_bounds(pace: float, taken: float) -> None:
    assert believed_welcome(Welcome(node="n2", agent="a", pace=pace)).pace == taken


# --- a share of processor time for each address ------------------------------------------------------


def test_a_thousand_nodes_of_one_network_are_not_throttled_as_their_run_stalls() -> None:
    """In IPv6 the nodes of a cluster often share a /64: their words on a stall came to 2.5 s of processor time at once."""
    loop, now = Loop((Peer("n1", 1),)), 100.0
    budget = loop.members.work
    for number in range(1024):
        address = f"2001:db8::{number:x}"
        loop.members.leader.welcome(of_node(f"e{number}", named("k", ranks=f"{number}", world_size=1024)), address, 1.0)  # fmt: skip
    refused = 0
    for number in range(1024):
        source = source_of(f"2001:db8::{number:x}")
        now += 0.0025  # one thread reads them, one after the other
        refused += not budget.allows(source, now)
        budget.spend(source, 0.0025, now)
    assert refused == 0
    budget.spend(source, 2.0, now)
    assert not budget.allows(source, now)
    assert budget.allows(source_of(HONEST), now)


def test_many_names_from_one_address_are_two_shares_at_most() -> None:
    budget = WorkBudget(nodes=lambda source: 8_000 if source == EVIL else 3)
    for source, most in ((EVIL, 2 * WORK), (HONEST, WORK)):
        budget.spend(source, most, 10.0)
        assert not budget.allows(source, 10.0)
        budget.spend(source, most, 10.0)
        assert not budget.allows(source, 10.0 + 0.9 * WORK / WORK_RATE)
        assert budget.allows(source, 10.0 + 1.1 * WORK / WORK_RATE)


def test_sources_that_owe_nothing_are_forgotten() -> None:
    budget = WorkBudget()
    for number in range(20_000):
        budget.spend(f"10.0.{number >> 8}.{number & 255}", 0.001, float(number))
    assert len(budget._used) <= 256


def test_one_source_that_costs_too_much_waits_and_another_does_not() -> None:
    budget = WorkBudget()
    budget.spend(EVIL, 3 * WORK, 10.0)
    assert not budget.allows(EVIL, 10.0)
    assert budget.allows(HONEST, 10.0)
    over = 10.0 + 2 * WORK / WORK_RATE
    assert not budget.allows(EVIL, over - 0.1)
    assert budget.allows(EVIL, over + 0.1)


def test_the_main_loop_s_time_for_a_question_counts_for_its_sender() -> None:
    loop = Loop((Peer("n1", 1),))
    runs = (named(f"k{one}", ranks="0") for one in range(MAX_RUNS))
    loop.members.ask(of_node("evil", *runs), EVIL)
    loop.take("question")
    assert loop.members.work._used[EVIL][0] > 0.0


def test_a_node_that_has_used_up_its_time_is_refused_at_the_door_and_others_are_not() -> None:
    loop, refusals, budget = Loop(), Refusals(), WorkBudget()
    budget.spend(EVIL, 60.0, time.monotonic())
    door = app(loop.members.ask, "n1", lambda _: b"", refusals=refusals, work=budget)
    body = msgspec.json.encode(of_node("evil"))
    evil = TestClient(door, client=(EVIL, 40_000)).post(ANNOUNCE, content=body)
    assert (evil.status_code, refusals.counts["storm"]) == (409, 1)
    assert "more time than one node has" in evil.text
    assert loop.inbox.empty()


# --- a run of which others have all ranks ------------------------------------------------------------


def whole(ranks: str, world: int, **more: Any) -> RunNews:
    return RunNews(key=KEY, world_size=world, ranks=ranks, **more)


def nodes_of(coordinator: Coordinator) -> list[str]:
    return [
        peer.announcement.node for call in coordinator.named(run_id(KEY)) for peer in call.peers
    ]


def test_a_run_of_which_others_have_all_ranks_takes_in_nobody_else() -> None:
    """Ranks 2 to 999 of a world of 1,000: the node of both ranks that there are was outvoted, and the liar named the culprit."""
    coordinator = Coordinator()
    coordinator.update(of_node("n1", whole("0-1", 2)), HONEST, 1.0)
    coordinator.update(of_node("liar", whole("2-999", 1000, stage="blamed", incident="x")), EVIL, 2.0)  # fmt: skip
    assert nodes_of(coordinator) == ["n1"]
    assert "n1 and others have all" in coordinator.refused[EVIL]
    assert list(coordinator.due(3.0)) == []


def test_nobody_tells_a_bad_end_of_ranks_that_others_have() -> None:
    """It was the cause of each stall of that run, with a culprit of the liar's choice."""
    end = AnnouncedExit(incident="x", diagnosis=EXITED, age=0.0)
    coordinator = Coordinator()
    stalled = whole("0-1", 2, stage="blamed", incident="own", age=100.0)
    coordinator.update(of_node("n1", stalled), HONEST, 1.0)
    coordinator.update(of_node("liar", whole("", 2, end=end)), EVIL, 2.0)
    (call,) = coordinator.due(3.0)
    assert (call.incident, call.cause) == ("own", None)
    assert EVIL not in coordinator.refused  # as of a run that was started anew


def test_the_end_of_ranks_that_nobody_has_any_more_is_the_cause() -> None:
    end = AnnouncedExit(incident="x", diagnosis=EXITED, age=0.0)
    coordinator = Coordinator()
    coordinator.update(of_node("n1", whole("0-1", 4, age=100.0)), HONEST, 1.0)
    coordinator.update(of_node("n2", whole("2-3", 4, age=100.0)), "10.0.0.3", 1.0)
    coordinator.update(of_node("n2", whole("2", 4, age=100.0, end=end)), "10.0.0.3", 2.0)
    stalled = whole("0-1", 4, stage="blamed", incident="own", age=100.0)
    coordinator.update(of_node("n1", stalled), HONEST, 2.0)
    (call,) = coordinator.due(3.0)
    assert call.cause == end


def test_who_speaks_for_another_agent_than_is_there_is_refused() -> None:
    """A moment late, and its runs were those that the liar had for it: none, so that its ranks were free to be taken."""
    coordinator = Coordinator()
    coordinator.update(of_node("n1", whole("0-1", 4)), HONEST, 1.0)
    false = Relayed(node="n1", agent="other", port=9, address="10.0.0.2")
    message = msgspec.structs.replace(of_node("liar"), relayed=(false,))
    coordinator.update_relayed(message, 8.0, EVIL)
    assert nodes_of(coordinator) == ["n1"]
    assert "speaks for n1" in coordinator.refused[EVIL]
    right = msgspec.structs.replace(false, agent="n1", runs=(whole("0-1", 4, step=7),))
    coordinator.update_relayed(msgspec.structs.replace(message, relayed=(right,)), 9.0, EVIL)
    (call,) = coordinator.named(run_id(KEY))
    assert call.news.step == 7
    coordinator.update_relayed(message, 90.0, EVIL)  # nobody has heard of it for long
    assert nodes_of(coordinator) == []


def test_of_a_run_that_is_here_alone_nobody_else_names_a_stall() -> None:
    """Any node with the key had an incident opened of a healthy run, or its own words put into the report of a stalled one."""
    loop = Loop((Peer("n2", 1),), (of_nodes("a", "n1", "n1:29500"),))
    run = loop.runs["a"]
    assert run.last_look is not None
    look = msgspec.structs.replace(run.last_look.look, elsewhere=False)
    run.last_look = msgspec.structs.replace(run.last_look, look=look)
    loop.members.tick(loop.runs)
    key = job_key(run.job, "n1")
    answer = loop.ask(CaptureOrder(key=key, attempt=0, incident="20261126T000000Z-false"))
    with pytest.raises(MldebugError, match="all ranks of it are here"):
        answer.result(timeout=0)
    assert loop.books.done == []
    assert loop.ordered == 0
    loop.ask(CaptureOrder(key=key, attempt=0, incident=""))  # a person's
    assert loop.ordered == 1


def test_ranks_that_are_missing_or_of_a_node_that_is_silent_may_come() -> None:
    coordinator = Coordinator()
    coordinator.update(of_node("n1", whole("0-1", 4)), HONEST, 1.0)
    coordinator.update(of_node("n2", whole("2-3", 4)), EVIL, 2.0)
    assert nodes_of(coordinator) == ["n1", "n2"]
    coordinator.update(of_node("n3", whole("0-1", 2, attempt=1)), HONEST, 3.0)
    coordinator.update(of_node("n4", whole("2-3", 4, attempt=1)), EVIL, 60.0)  # n3 is long silent
    assert "n4" in nodes_of(coordinator)


def test_of_two_nodes_that_disagree_who_shows_all_ranks_is_used() -> None:
    """Who said the larger world was: its ranks are as many as it likes."""
    honest, liar = captures_of(2, 2)["a1"], captures_of(64, 2)["a3"]
    job = msgspec.structs.replace(honest.job, world_size=len(honest.ranks))
    honest = msgspec.structs.replace(honest, job=job)
    replies = {
        "n1": NodeReply(node="n1", captures=(honest,)),
        "n2": NodeReply(node="n2", captures=(liar,)),
    }
    (run,) = merge(NodeReplies(replies)).runs
    assert [capture.node for capture in run.captures] == ["n1"]
