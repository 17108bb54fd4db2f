"""A limited number of threads that connect to other nodes; one other thread waits for the connections."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from mldebug.core.errors import MldebugError
from mldebug_agents.cluster.peers.net.client import PeerConnection

MOST = 192  # threads of one stall: four at once fit into the unit's TasksMax
SPARE = 4  # where the system has fewer threads than wanted, one of so many is left to others

Reached = PeerConnection | MldebugError
Connect = Callable[[int], PeerConnection]


class ConnectPool:
    """Connects to many nodes at the same time with a bounded number of threads.

    `connect(n)` connects to the n-th node; it runs in a thread of the pool or, where the system allows no thread, in the one that
    calls `came`. `wanted`: number of nodes.
    """

    def __init__(self, connect: Connect, wanted: int) -> None:
        self._connect = connect
        self._todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._came: queue.SimpleQueue[tuple[int, Reached]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = False
        self.begun: set[int] = set()  # nodes whose connection was started
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._threads = self._kept(sum(1 for _ in self._started(min(MOST, wanted))), wanted)

    def fileno(self) -> int:
        """A descriptor that becomes readable when `came` has something, for a selector."""
        return self._bell.fileno()

    def go(self, number: int) -> None:
        """Queue the connection to the n-th node."""
        self._todo.put(number)
        self._ring()  # where no thread is, `came` does it

    def came(self) -> Iterator[tuple[int, Reached]]:
        """The results since the last call: (n, connection), or (n, error) for a node that could not be connected."""
        with suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
        if not self._threads and self._one(block=False):
            self._ring()
        with suppress(queue.Empty):
            while True:
                yield self._came.get_nowait()

    def end(self) -> None:
        """Stop the pool. Connections that are made later are closed at once."""
        with self._lock:
            self._over = True
        for _ in range(self._threads):
            self._todo.put(None)
        for _, one in self.came():
            if isinstance(one, PeerConnection):
                one.close()
        self._bell.close()
        self._ringer.close()

    def _kept(self, count: int, wanted: int) -> int:
        """The job, and the child that captures our own ranks, need some of the tasks that the system has."""
        if count >= min(MOST, wanted):
            return count
        spare = count // SPARE
        for _ in range(spare):
            self._todo.put(None)
        return count - spare

    def _started(self, count: int) -> Iterator[threading.Thread]:
        for _ in range(count):
            thread = threading.Thread(target=self._work, name="mldebug-asking", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # TasksMax of the unit, or a limit of the user
                return
            yield thread

    def _work(self) -> None:
        while self._one():
            pass

    def _one(self, *, block: bool = True) -> bool:
        try:
            number = self._todo.get(block)
        except queue.Empty:
            return False
        if number is None or self._over:
            return False
        self.begun.add(number)
        self._bring(number, self._reached(number))
        return True

    def _reached(self, number: int) -> Reached:
        try:
            return self._connect(number)
        except MldebugError as error:
            return error
        except (
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # one node's trouble is not that of the others
            return MldebugError(f"it could not be asked: {type(error).__name__}: {error}")

    def _bring(self, number: int, reached: Reached) -> None:
        with self._lock:
            if not self._over:
                self._came.put((number, reached))
                self._ring()
            elif isinstance(reached, PeerConnection):
                reached.close()

    def _ring(self) -> None:
        with suppress(OSError):  # it rings already
            self._ringer.send(b"!")
