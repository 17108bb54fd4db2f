"""One request to many nodes at the same moment: all are connected and have proved the key first, then all are sent the request.

A TLS handshake costs milliseconds on both ends, so a thousand of them take seconds. If each node were connected just before it is
sent to, the captures would lie that far apart. One thread sends and reads; a `ConnectPool` connects.
"""

import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from mldebug.core.errors import MldebugError
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient, PeerConnection
from mldebug_agents.cluster.peers.net.connect_pool import ConnectPool, Reached
from mldebug_agents.cluster.peers.net.errors import CutError, NoRoomError, SilentError, SlowError
from mldebug_agents.cluster.peers.net.http_answer import HttpAnswer
from mldebug_agents.system.gone import LOOK, Gone

LULL = 1.0  # seconds in which nobody else was reached: then most of them, who were, are not kept waiting
SLOW = 4.0  # seconds for a handshake that was too slow once
GATHER = 5.0  # seconds after the first was reached, in which the others may be
GRACE = 1.0  # seconds after the deadline, in which threads tell why they came to nothing

Clock = Callable[[], float]


class NodeAnswer(NamedTuple):
    """The result of asking one node: the body of its answer, or the error. Times are monotonic seconds of this node, None for never."""

    answer: bytes | MldebugError
    sent: float | None = None
    came: float | None = None  # the first byte of its answer


class _OpenConnection(NamedTuple):
    line: PeerConnection
    answer: HttpAnswer


class Broadcast:
    """One POST to many nodes at the same moment: connects to all first, then sends to all.

    `path`, `body`: of the request. `most`: maximum bytes of an answer. `patience`: seconds that a node may take to answer after
    the request was sent. `gone`: whether nobody waits for the answers any more; then all nodes are hung up on.
    """

    def __init__(
        self,
        client: PeerClient,
        to: Sequence[Peer],
        path: str,
        body: bytes,
        most: int,
        patience: float,
        clock: Clock = time.monotonic,
        gone: Gone | None = None,
    ) -> None:
        self._client, self._to, self._clock = client, to, clock
        self._gone = gone
        self._path, self._body, self._most, self._patience = path, body, most, patience
        self._until = clock() + GATHER + patience  # sooner, as soon as the orders are sent
        self._ready: dict[int, PeerConnection] = {}
        self._open: dict[int, _OpenConnection] = {}
        self._sent: dict[int, float] = {}
        self._came: dict[int, float] = {}
        self._answers: dict[int, bytes | MldebugError] = {}
        self._twice: set[int] = set()
        self._no_room: list[int] = []  # nodes that wait until another one is done
        # nodes that are being connected -> whether no other connection was open when that began
        self._away: dict[int, bool] = {}
        self._slow: dict[int, MldebugError] = {}  # tried again as soon as the orders are sent
        self._fired = False
        self._first = self._last = clock()  # when somebody was reached

    def send_all(self) -> list[NodeAnswer]:
        """Send to all nodes, wait for the answers, and return one `NodeAnswer` per node, in the order of `to`. Does not raise for a node that fails."""
        self._pool = ConnectPool(self._connect, len(self._to))
        with closing(self), selectors.DefaultSelector() as self._selector:
            self._selector.register(self._pool, selectors.EVENT_READ)
            for number in range(len(self._to)):
                self._go(number)
            while len(self._answers) < len(self._to) and self._clock() < self._until + GRACE:
                if self._gone is not None and self._gone():
                    break
                self._step()
        return [self._shot(number) for number in range(len(self._to))]

    def close(self) -> None:
        """Close all connections, and stop the threads that connect."""
        self._pool.end()
        for line in (*self._ready.values(), *(one.line for one in self._open.values())):
            line.close()

    def _connect(self, number: int) -> PeerConnection:
        """In some thread."""
        if number in self._slow:
            return self._client.connect(self._to[number], self._until, SLOW)
        return self._client.connect(self._to[number], self._until)

    def _step(self) -> None:
        for key, _ in self._selector.select(self._wait()):
            if key.data is not None:
                self._read(key.data)
        for number, reached in self._pool.came():
            self._reached(number, reached)
        if not self._fired and self._is_time():
            self._send_all()
        if not (self._away or self._ready or self._open):
            self._next()  # nobody is left who could make room

    def _wait(self) -> float:
        """Seconds until something is due though nobody comes."""
        now = self._clock()
        due = self._until + GRACE
        if self._gone is not None:
            due = min(due, now + LOOK)
        if self._ready and not self._fired:
            most = 2 * len(self._ready) > len(self._to)
            due = min(due, self._first + GATHER, self._last + LULL if most else due)
        return max(0.0, due - now)

    def _is_time(self) -> bool:
        """Are all here that can be, or have those who are waited for long enough?"""
        here = len(self._ready)
        if here + len(self._answers) + len(self._no_room) + len(self._slow) >= len(self._to):
            return True
        now = self._clock()
        lull = 2 * here > len(self._to) and now >= self._last + LULL
        return bool(here) and (lull or now >= self._first + GATHER)

    def _send_all(self) -> None:
        self._fired = True
        self._until = self._clock() + self._patience
        while self._ready:
            self._send(*self._ready.popitem())
        for number in self._slow:
            self._once_more(number)

    def _reached(self, number: int, reached: Reached) -> None:
        alone = self._away.pop(number)
        if isinstance(reached, PeerConnection):
            self._last = self._clock()
            if not self._ready and not self._fired:
                self._first = self._last
            self._ready[number] = reached
            if self._fired:
                self._send(number, self._ready.pop(number))
        elif isinstance(reached, NoRoomError) and not alone:
            self._no_room.append(number)
        elif isinstance(reached, SlowError) and number not in self._slow:
            self._slow[number] = reached
            self._next()
            if self._fired:
                self._once_more(number)
        else:
            self._failed(number, reached)

    def _send(self, number: int, line: PeerConnection) -> None:
        line.allow(self._until, self._patience)
        self._open[number] = _OpenConnection(line, HttpAnswer(self._most))
        try:
            self._sent.setdefault(number, self._clock())
            line.send(self._path, self._body)
        except MldebugError as error:
            self._hang_up(number)
            self._failed(number, error)
        else:
            self._selector.register(line, selectors.EVENT_READ, number)

    def _read(self, number: int) -> None:
        line, answer = self._open[number]
        try:
            complete = line.take(answer)
            if answer.begun:
                self._came.setdefault(number, self._clock())
            if complete:
                self._answers[number] = answer.body()
        except MldebugError as error:
            self._selector.unregister(line)
            self._hang_up(number)
            self._failed(number, error)
            return
        if complete:
            self._selector.unregister(line)
            self._hang_up(number)

    def _hang_up(self, number: int) -> None:
        self._open.pop(number).line.close()
        self._next()

    def _go(self, number: int) -> None:
        self._away[number] = not (self._away or self._ready or self._open)
        self._pool.go(number)

    def _once_more(self, number: int) -> None:
        """Connect again, after the nodes that had no room: a slow one may keep a connection for seconds."""
        if self._no_room:
            self._no_room.append(number)
        else:
            self._go(number)

    def _next(self) -> None:
        """A connection was closed: try one node that had no room, or two, in case one was given up too soon."""
        for _ in range(min(2, len(self._no_room))):
            self._go(self._no_room.pop(0))

    def _failed(self, number: int, error: MldebugError) -> None:
        """Once more where the connection is cut, before one lost connection costs a node its evidence: one capture serves both orders."""
        if isinstance(error, CutError) and number not in self._twice:
            self._twice.add(number)
            self._came.pop(number, None)
            self._go(number)
        else:
            first = self._slow.get(number)
            self._answers[number] = first if first and isinstance(error, SilentError) else error
            self._next()

    def _shot(self, number: int) -> NodeAnswer:
        # not kept here: this object and its pool refer to each other, so it may stay for long
        answer = self._answers.pop(number) if number in self._answers else self._missing(number)
        return NodeAnswer(answer, self._sent.get(number), self._came.get(number))

    def _missing(self, number: int) -> MldebugError:
        if number in self._sent:
            return SilentError(f"no answer in {self._patience:g} s")
        if number in self._slow:
            return self._slow[number]
        if number in self._pool.begun and number not in self._no_room:
            return MldebugError("its name was not looked up in time")
        return MldebugError("it was not asked: this node had no hand free for it in time")


def broadcast(
    client: PeerClient,
    to: Sequence[Peer],
    path: str,
    body: bytes,
    *,
    most: int,
    patience: float,
    clock: Clock = time.monotonic,
    gone: Gone | None = None,
) -> Iterator[NodeAnswer]:
    """Send one POST to many nodes at the same moment and yield one `NodeAnswer` per node, in the order of `to`; see `Broadcast`."""
    answers = Broadcast(client, to, path, body, most, patience, clock, gone).send_all()
    answers.reverse()
    while answers:  # none is held longer than its reader needs it
        yield answers.pop()
