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
    DumpOrder,
    Relayed,
    RunNews,
    believed,
)
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug_agents.cluster.peers.controller import MAX_OF_ONE
from mldebug_agents.cluster.peers.coordinator_search import candidates
from mldebug_agents.cluster.peers.net.client import Peer
from unit.cluster.test_peers_controller import JOB, Loop, of_nodes
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
        found = loop.inbox.get(timeout=10)
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
