"""Queries all nodes at once and collects what comes until a deadline; every node has an entry in the result."""

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from mldebug.cluster.merge import NodeReplies
from mldebug.cluster.wire import NodeReply, ReplyLines, read_line
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.model import QueriedNode
from mldebug.core.redact import safe_line
from mldebug_agents.cluster.fanout.messages import NAME, FanoutNews, FanoutPlan, Transport
from mldebug_agents.system.child.link import ChildLink
from mldebug_agents.system.child.worker import ForkedWorker
from mldebug_agents.system.spawn import Spawner

_LABEL = re.compile(r" *([0-9]{1,6}): ")  # of srun --label
MAX_MESSAGE = 64 << 10
GRACE = 3.0  # seconds for the child to end what it has started
BATCH = 2.0  # seconds that one more round of connections takes at least

Progress = Callable[[int, tuple[str, ...]], None]
"""Is told how many nodes have answered, and which have not yet."""


class ReplyCollector:
    """Collects the nodes' replies of one command as they arrive."""

    def __init__(self, plan: FanoutPlan, transport: Transport) -> None:
        self.plan = plan
        self._transport = transport
        known = {node.name for node in plan.absent}
        self._pieces = {name: ReplyLines() for name in plan.nodes if name not in known}
        self._waiting = dict.fromkeys(self._pieces)
        self._failed = {node.name: node for node in plan.absent}
        self._replies: dict[str, NodeReply] = {}
        self._errors: list[str] = []
        self._speakers: dict[str, str] = {}  # label of the task by name of its node
        self._speaks_for: dict[str, str] = {}

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of nodes that have neither answered nor failed yet."""
        return tuple(self._waiting)

    @property
    def answered(self) -> int:
        """The number of nodes whose whole answer has come."""
        return len(self._replies)

    def take(self, news: FanoutNews) -> None:
        """Handle one event of the child: a line of output, an error, or the end of one node's command."""
        if news.line:
            self._take_line(news)
        elif not news.node and news.error:
            self._errors.append(news.error)
        elif news.node in self._waiting:
            self._take_end(news)

    def _take_line(self, news: FanoutNews) -> None:
        """A line of an answer; the command that runs here speaks for all nodes, ssh for one."""
        piece = read_line(news.line.encode(errors="replace"))
        name = news.node or (piece.node if piece else "")
        if piece is None or name not in self._pieces or not self._is_its_own(name, news):
            return
        if name not in self._waiting:
            return
        pieces = self._pieces[name]
        pieces.add(piece)
        if pieces.complete:
            self._open(name, pieces)

    def _is_its_own(self, name: str, news: FanoutNews) -> bool:
        """Of the command that runs here, each task speaks for one node; of a node that two speak for, neither is believed."""
        label = _LABEL.match(news.line)
        if news.node or label is None:
            return True
        if self._speaks_for.setdefault(label[1], name) != name:
            return False
        if self._speakers.setdefault(name, label[1]) == label[1]:
            return True
        self._replies.pop(name, None)
        reason = "two tasks say that they run on it"
        self._fail(QueriedNode(name=name, state="refused", reason=reason))
        return False

    def _open(self, name: str, pieces: ReplyLines) -> None:
        try:
            self._replies[name] = pieces.reply()
        except EvidenceError as error:
            self._fail(QueriedNode(name=name, state="refused", reason=error.message))
        self._waiting.pop(name, None)
        self._pieces[name] = ReplyLines()

    def _fail(self, node: QueriedNode) -> None:
        self._failed[node.name] = node
        self._waiting.pop(node.name, None)

    def _take_end(self, news: FanoutNews) -> None:
        if news.late or news.code is None:
            self._fail(self._late(news.node, news.error))
        elif self._pieces[news.node].begun:
            self._fail(self._cut_off(news.node))
        else:
            error = safe_line(news.error, 300)
            self._fail(self._transport.ended(news.node, news.code, error))

    def _late(self, name: str, error: str = "") -> QueriedNode:
        last_line = f"; its last line: {safe_line(error, 200)}" if error else ""
        reason = f"no answer in {self.plan.order.timeout:g} s{last_line}"
        return QueriedNode(name=name, state="unable", reason=reason)

    def _cut_off(self, name: str) -> QueriedNode:
        try:
            self._pieces[name].reply()
        except EvidenceError as error:
            return QueriedNode(name=name, state="unable", reason=error.message)
        return QueriedNode(name=name, state="unable")  # not reached: it would have been opened

    def replies(self) -> NodeReplies:
        """End the collection. Returns all replies and, for each node without one, the reason."""
        reasons = self._transport.explain(self.plan, self._errors)
        for name in self.missing:
            begun = self._pieces[name].begun
            late = self._cut_off(name) if begun else reasons.get(name) or self._late(name)
            self._fail(late)
        return NodeReplies(self._replies, tuple(self._failed.values()))


def ask_all(
    spawner: Spawner, plan: FanoutPlan, transport: Transport, progress: Progress = lambda *_: None
) -> NodeReplies:
    """Run the plan's command on its nodes and collect the replies until the deadline. An error of a node becomes part of
    the result. Raises MldebugError where the command could not be run at all, OSError where the child process that runs
    it cannot be started.

    `progress`: called with the number of answers and the nodes still missing.
    """
    collector = ReplyCollector(plan, transport)
    rounds = -(-len(plan.order.nodes) // plan.order.fanout) if plan.order.nodes else 1
    deadline = time.monotonic() + rounds * (plan.order.timeout + plan.order.grace + BATCH)
    worker = spawner.fork_worker(NAME)
    try:
        link = ChildLink(worker.socket, msgspec.msgpack.Decoder(FanoutNews), max_body=MAX_MESSAGE)
        link.send(plan.order)
        progress(0, collector.missing)
        for news in _news(link, worker.socket, deadline):
            if news.trouble:
                raise MldebugError(f"the nodes could not be asked: {safe_line(news.trouble, 300)}")
            collector.take(news)
            progress(collector.answered, collector.missing)
            if news.over or not collector.missing:
                break
    finally:
        _end(worker)
    return collector.replies()


def _news(
    link: ChildLink[FanoutNews], connection: socket.socket, deadline: float
) -> Iterator[FanoutNews]:
    """Until it is over, the child is gone, or the deadline has passed."""
    with suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            yield link.receive()


def _end(worker: ForkedWorker) -> None:
    """Hang up, and let it end what it has started; it is killed when it does not."""
    worker.hang_up()
    deadline = time.monotonic() + GRACE
    while not worker.gone() and time.monotonic() < deadline:
        time.sleep(0.02)
    worker.kill()
