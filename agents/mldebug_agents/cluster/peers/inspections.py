"""Inspections of ranks on other nodes: the coordinator passes a person's request to the nodes of these ranks, and each node's agent carries
out its part. One at a time for each run.

Plans are made by the main loop, which knows the runs; what takes minutes is done by threads of the server.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from mldebug.capture.inspection import InspectedRanks, believed, together
from mldebug.cluster.inspection import (
    MAX_FILES,
    ON_THE_WAY,
    Inspection,
    InspectOrder,
    NodeInspection,
    NodeInspectOrder,
    is_allowed,
    most_bytes,
    not_inspected,
    ranks_by_node,
    read_inspection,
)
from mldebug.cluster.known_peers import CaptureCall
from mldebug.cluster.run_identity import RunKey, run_id
from mldebug.core.errors import FailedCheckError, MldebugError
from mldebug.core.model import Job
from mldebug.core.ranksets import fold_ranks, rank_intervals
from mldebug_agents.cluster.peers.net.broadcast import NodeAnswer, broadcast
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.openapi import INSPECT_NODE
from mldebug_agents.incidents.node_inspection import NodeInspector
from mldebug_agents.system.gone import GONE, Gone, never
from mldebug_agents.watch.runs import Run

AT_ONCE = 4  # inspections of different runs: each holds a thread of the server for minutes


class InspectionPlan(NamedTuple):
    """Which nodes a coordinator asks for which of their ranks."""

    order: InspectOrder
    key: RunKey
    attempt: int
    ranks: Mapping[str, tuple[int, ...]]  # by node
    peers: Mapping[str, Peer]


class NodePart(NamedTuple):
    """The part of an inspection that concerns this node: which ranks of a job that runs here are to be inspected."""

    order: NodeInspectOrder
    job: Job
    ranks: str  # folded


def plan(order: InspectOrder, call: CaptureCall, stall: str) -> InspectionPlan:
    """Which nodes are to be asked. `stall`: the id of the run's open stall, "" for none.

    Raises MldebugError while it stalls, and where the ranks are not just where one node each shows them.
    """
    if stall:
        raise FailedCheckError(_stalls(call.news.name, stall))
    shown = {
        peer.announcement.node: rank_intervals(news.ranks)
        for peer in call.peers
        for news in peer.announcement.runs
        if (news.key, news.attempt) == (call.news.key, call.news.attempt)
    }
    ranks = ranks_by_node(order.ranks, shown)
    peers = {
        one.announcement.node: Peer(one.address, one.announcement.port, one.announcement.node)
        for one in call.peers
    }
    return InspectionPlan(order, call.news.key, call.news.attempt, ranks, peers)


def part_of(order: NodeInspectOrder, run: Run | None, node: str) -> NodePart:
    """What this node (`node`) is to do. Raises MldebugError where the run is not here or stalls, or belongs to another user than the one who asks."""
    if run is None:
        raise MldebugError("it runs here no more")
    if not is_allowed(order.key, order.uid):
        raise MldebugError("it is another user's")
    if run.incident is not None and run.incident.kind == "stall":
        raise FailedCheckError(_stalls(run.job.name, run.incident.id))
    return NodePart(order, run.job, order.ranks.get(node, ""))


def _stalls(name: str, stall: str) -> str:
    return f"a stall of {name} is open (report {stall}): it is not asked for more"


class Turns:
    """Lets one at a time through for each key, and few in all. For any thread."""

    def __init__(self, most: int = AT_ONCE) -> None:
        self._lock, self._taken, self._most = threading.Lock(), set[object](), most

    @contextmanager
    def take(self, key: object) -> Iterator[None]:
        """Hold the turn of this key meanwhile. Raises MldebugError where it is taken."""
        with self._lock:
            if key in self._taken:
                raise MldebugError(
                    "another profile or look at its memory is going on: one at a time"
                )
            if len(self._taken) >= self._most:
                raise MldebugError(
                    f"{self._most} profiles of other jobs are going on: wait a minute"
                )
            self._taken.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._taken.discard(key)


class Inspections:
    """Carries out what the main loop has planned. For threads of the server."""

    def __init__(self, client: PeerClient, inspect: NodeInspector) -> None:
        """`inspect`: inspects ranks of this node."""
        self._client, self._inspect = client, inspect
        self._all, self._here = Turns(), Turns()

    def everywhere(self, planned: InspectionPlan, gone: Gone = never) -> bytes:
        """Have all nodes of the plan inspect their ranks; an `Inspection`, as JSON.

        `gone`: whether nobody waits for it any more; then each node is hung up on, which ends what it does. Raises MldebugError then.
        """
        with self._all.take(planned.key):
            found = self._ask_nodes(planned, gone)
        if gone():
            raise MldebugError(GONE)
        return msgspec.json.encode(found)

    def here(self, part: NodePart, gone: Gone = never) -> bytes:
        """Inspect ranks of this node; a `NodeInspection`, as JSON. Raises MldebugError where nothing comes of it, as when nobody waits for
        it any more (`gone`).
        """
        order = part.order
        with self._here.take(order.key):
            most = min(max(0, order.most), MAX_FILES)
            outcome = self._inspect(part.job, part.ranks, order.options, most, gone)
        if outcome.found is None:
            raise MldebugError(outcome.error or "nothing came of it")
        return msgspec.json.encode(NodeInspection(found=outcome.found, reply=outcome.reply))

    def _ask_nodes(self, planned: InspectionPlan, gone: Gone) -> Inspection:
        order, most = planned.order, MAX_FILES // len(planned.ranks)
        parts: list[InspectedRanks] = []
        replies: dict[str, bytes] = {}
        for node, shot in self._shots(planned, most, gone):
            try:
                answer = _answer(shot)
                del shot  # what has travelled is larger than what it says
                found = believed(answer.found, planned.ranks[node], node)
            except MldebugError as error:
                parts.append(not_inspected(order, planned.ranks[node], node, error.message))
                continue
            silent = set(planned.ranks[node]) - {one.rank for one in found.ranks}
            parts += [found, not_inspected(order, silent, node, "its node told nothing of it")]
            if answer.reply:
                replies[node] = answer.reply
        return Inspection(job=run_id(planned.key), found=together(parts), replies=replies)

    def _shots(
        self, planned: InspectionPlan, most: int, gone: Gone
    ) -> Iterator[tuple[str, NodeAnswer]]:
        """Each node is asked for its own ranks, all at the same moment."""
        order = planned.order
        nodes = list(planned.ranks)
        body = msgspec.json.encode(
            NodeInspectOrder(
                key=planned.key,
                attempt=planned.attempt,
                ranks={name: fold_ranks(ranks) for name, ranks in planned.ranks.items()},
                uid=order.uid,
                options=order.options,
                most=most,
            )
        )
        shots = broadcast(
            self._client,
            [planned.peers[name] for name in nodes],
            INSPECT_NODE,
            body,
            most=most_bytes(most),
            patience=order.options.deadline + ON_THE_WAY,
            gone=gone,
        )
        return zip(nodes, shots, strict=True)


def _answer(shot: NodeAnswer) -> NodeInspection:
    if isinstance(shot.answer, MldebugError):
        raise shot.answer
    return read_inspection(shot.answer)
