"""What people ask of all nodes: each coordinator hears it once, and one that is silent keeps nobody else's answer."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mldebug.cluster.messages import (
    CLUSTER_PATH,
    DUMP_PATH,
    ClusterView,
    DumpOrder,
    PeerView,
    RunNews,
)
from mldebug.core.errors import MldebugError
from mldebug.status.cluster_lines import cluster_lines
from mldebug_agents.cluster.peers.net.client import Peer
from mldebug_agents.cluster.peers.net.errors import RefusedError, SilentError
from mldebug_agents.cluster.peers.openapi import DUMP
from mldebug_agents.cluster.peers.verbs import peer_verbs


class Coordinators:
    """Those that a node knows, and what they answer."""

    def __init__(
        self, count: int, answer: Callable[[str], bytes], jobs: dict[str, str] | None = None
    ) -> None:
        self.coordinators = tuple(Peer(f"c{number}", 1) for number in range(count))
        self.sentence, self._answer, self._jobs = "", answer, jobs or {}
        self.requests: list[str] = []

    def coordinators_of(self, job: str) -> tuple[Peer, ...]:
        return (Peer(self._jobs[job], 1),) if job in self._jobs else ()

    def ask(self, to: Peer, path: str, body: bytes, **_: object) -> bytes:
        self.requests.append(to.host)
        if path == DUMP:
            assert msgspec.json.decode(body, type=DumpOrder).job == "train"
        return self._answer(to.host)

    def verb(self, path: str, uid: int | None = None) -> Any:
        return peer_verbs(self, self)[path]({"job": "train"}, uid)  # type: ignore[arg-type]


def refuses(host: str) -> bytes:
    raise RefusedError(f"{host} says: no runs match train")


@pytest.mark.parametrize("count", [1, 2, 6, 64])
def test_each_coordinator_is_asked_once(count: int) -> None:
    """A second question would be a second capture of all nodes."""
    nodes = Coordinators(count, refuses)
    with pytest.raises(MldebugError, match="c0 says: no runs match train"):
        nodes.verb(DUMP_PATH)
    assert nodes.requests == [f"c{number}" for number in range(count)]


def test_the_coordinator_of_that_job_is_asked_first() -> None:
    nodes = Coordinators(6, refuses, {"train": "c4"})
    with pytest.raises(MldebugError):
        nodes.verb(DUMP_PATH)
    assert nodes.requests == ["c4", "c0", "c1", "c2", "c3", "c5"]


def test_a_dead_coordinator_keeps_nobody_s_job() -> None:
    def answer(host: str) -> bytes:
        if host == "c0":
            raise SilentError("no answer in 3 s")
        raise RefusedError("no node has sent a capture")

    nodes = Coordinators(2, answer)
    with pytest.raises(MldebugError) as caught:
        nodes.verb(DUMP_PATH)
    assert nodes.requests == ["c0", "c1"]
    assert caught.value.message == "no answer in 3 s; no node has sent a capture"


def view(host: str) -> bytes:
    if host == "c1":
        raise SilentError("no answer in 3 s")
    run = RunNews(key=("env", "0", host), name="train", world_size=2, ranks="0-1")
    members = (PeerView(node=f"node-{host}", seconds_ago=1.0, runs=(run,)),)
    return msgspec.json.encode(ClusterView(coordinator=host, peers=members))


@pytest.mark.parametrize("count", [2, 6, 64])
def test_one_silent_coordinator_hides_only_its_own_runs(count: int) -> None:
    nodes = Coordinators(count, view)
    shown = nodes.verb(CLUSTER_PATH)
    assert {one.node for one in shown.peers} == {
        f"node-c{number}" for number in range(count) if number != 1
    }
    assert shown.silent == {"c1:1": "no answer in 3 s"}
    lines = list(cluster_lines(shown))
    assert "its runs are not shown: c1:1 coordinates, and no answer in 3 s" in lines


def test_where_no_coordinator_answers_that_is_an_error() -> None:
    def silent(_: str) -> bytes:
        raise SilentError("no answer in 3 s")

    with pytest.raises(SilentError, match="no answer in 3 s"):
        Coordinators(3, silent).verb(CLUSTER_PATH)
