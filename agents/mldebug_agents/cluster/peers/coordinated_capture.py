"""The coordinated capture: all nodes of a run are ordered to capture at one moment, and the answers until a deadline are merged."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import msgspec

from mldebug.cluster.known_peers import CaptureCall, shown_ranks
from mldebug.cluster.merge import MergedRun, NodeReplies, Topology, merge, placed
from mldebug.cluster.messages import CaptureOrder
from mldebug.cluster.run_identity import RunKey, run_key
from mldebug.cluster.wire import MAX_BYTES, NodeReply, unpack
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.model import Gap, QueriedNode
from mldebug.core.report_model import ReportTrigger
from mldebug_agents.cluster.peers.net.broadcast import NodeAnswer, broadcast
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.errors import SilentError
from mldebug_agents.cluster.peers.openapi import CAPTURE

DEADLINE = 20.0  # seconds for one node
MAX_AGE = 30.0  # seconds before the order was sent, in which a capture was begun that serves several orders


class NodeToAsk(NamedTuple):
    """One node to be captured; `announced_at`: when it announced itself last (monotonic), None: never."""

    name: str
    to: Peer
    announced_at: float | None


class CaptureRound(NamedTuple):
    """An order to capture a run on all its nodes. `others`: configured nodes that never announced themselves; they may have
    ranks too.
    """

    call: CaptureCall
    others: tuple[NodeToAsk, ...] = ()
    answer: "Future[ClusterCapture] | None" = None  # of a person who waits; None: it is an incident

    def nodes(self) -> tuple[NodeToAsk, ...]:
        """The nodes to capture: those that announced the run and, where these do not hold all its ranks, `others` too."""
        known = tuple(
            NodeToAsk(
                peer.announcement.node,
                Peer(peer.address, peer.announcement.port, peer.announcement.node),
                peer.at,
            )
            for peer in self.call.peers
        )
        shown = shown_ranks(self.call.peers, self.call.news.key) or 1
        return known if shown >= self.call.news.world_size else (*known, *self.others)


class ClusterCapture(NamedTuple):
    """The result of a capture on all nodes; `run` is None where no node sent a usable capture."""

    call: CaptureCall
    run: MergedRun | None
    spread: float  # seconds from the begin of the first capture to that of the last, as the clock here tells it
    sent: float = 0.0  # seconds from the first order to the last: no node can tell that otherwise
    trigger: ReportTrigger = "manual"  # who has asked


class _CaptureAnswer(NamedTuple):
    name: str
    reply: NodeReply | None
    failed: QueriedNode | None
    begun: float  # at the latest


def ask_all(
    client: PeerClient,
    capture_round: CaptureRound,
    clock: Callable[[], float] = time.monotonic,
    topology: Topology | None = None,
) -> ClusterCapture:
    """Order the captures of all nodes at the same moment and merge them. Runs in a worker."""
    call, nodes = capture_round.call, capture_round.nodes()
    order = CaptureOrder(
        key=call.news.key,
        attempt=call.news.attempt,
        incident=call.incident,
        sentence=f"{call.noticed_by}: {call.news.sentence}",
        caused=call.cause is not None,
    )
    body = msgspec.json.encode(order)
    first = sorted(nodes, key=_since)  # those who are heard of are not to wait for dead ones
    where = [one.to for one in first]
    shots = broadcast(client, where, CAPTURE, body, most=MAX_BYTES, patience=DEADLINE, clock=clock)
    came = dict(zip(first, shots, strict=True))
    each = (_answer(node, came[node], order.key, clock) for node in nodes)
    answers = list(_once_each(each))
    replies = {answer.name: answer.reply for answer in answers if answer.reply is not None}
    replies_of = NodeReplies(replies, [one.failed for one in answers if one.failed is not None])
    run = next(iter(merge(replies_of).runs), None)
    took = [one.begun for one in answers if one.reply is not None and one.reply.captures]
    spread = max(took) - min(took) if took else 0.0
    sent = [one.sent for one in shots if one.sent is not None]
    return ClusterCapture(
        call,
        run and _completed(run, call.gaps, topology),
        spread,
        max(sent) - min(sent) if sent else 0.0,
    )


def _since(node: NodeToAsk) -> float:
    """Sort key: nodes that announced themselves lately come first."""
    return math.inf if node.announced_at is None else -node.announced_at


def _completed(run: MergedRun, gaps: tuple[Gap, ...], topology: Topology | None) -> MergedRun:
    first, *others = run.captures
    first = msgspec.structs.replace(first, gaps=(*gaps, *first.gaps))
    return MergedRun((first, *others), placed(run.queried, topology))


def _once_each(answers: Iterable[_CaptureAnswer]) -> Iterator[_CaptureAnswer]:
    """Each node once: one that was asked under two names counts under the name it announced, which comes first."""
    known = set()
    for answer in answers:
        if answer.reply is not None and answer.reply.machine:
            ranks = [rank for capture in answer.reply.captures for rank in capture.job.ranks]
            place = (answer.reply.machine, *((rank.pid, rank.start_ticks) for rank in ranks))
            if place in known:
                continue
            known.add(place)
        yield answer


def _answer(
    node: NodeToAsk, shot: NodeAnswer, key: RunKey, clock: Callable[[], float]
) -> _CaptureAnswer:
    """What came of one node. Its own clock is used for the age of its capture alone."""
    last_seen = None if node.announced_at is None else time.time() - (clock() - node.announced_at)
    failed = partial(QueriedNode, name=node.name, last_seen=last_seen)
    try:
        reply = _reply(shot, key)
    except SilentError as error:
        return _CaptureAnswer(node.name, None, failed(state="silent", reason=error.message), 0.0)
    except EvidenceError as error:
        return _CaptureAnswer(node.name, None, failed(state="refused", reason=error.message), 0.0)
    except MldebugError as error:
        return _CaptureAnswer(node.name, None, failed(state="unable", reason=error.message), 0.0)
    return _CaptureAnswer(node.name, reply, None, _begun(shot, reply.age, clock()))


def _begun(shot: NodeAnswer, age: float, now: float) -> float:
    """When its capture was begun, between what can be: its own word is `age`, in seconds before its answer came."""
    came = now if shot.came is None else shot.came
    sent = came if shot.sent is None else shot.sent
    begun = came - max(0.0, age) if math.isfinite(age) else -math.inf
    return max(sent - MAX_AGE, begun)


def _reply(shot: NodeAnswer, key: RunKey) -> NodeReply:
    if isinstance(shot.answer, MldebugError):
        raise shot.answer
    reply = unpack(shot.answer)
    if any(run_key(capture) != key for capture in reply.captures):
        raise EvidenceError("its answer is of another run")
    return reply
