"""Limits how many connections one user or address may hold, so that idle ones cannot lock others out.

A listening socket keeps at most `EACH` connections of one client (a user at the Unix socket, an address over TCP) and `MOST` of
all; where one more comes, the oldest of them is closed, and of those that are being answered none before the others: many users
come from one address, through a proxy or the loopback. root and the agent's own user are counted apart.
"""

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from mldebug.cluster.source_shares import source_of
from mldebug_agents.web.peer_credentials import peer_of

log = logging.getLogger("mldebug")

EACH, MOST = 8, 32
BACKLOG = 32  # accepted in one turn of the loop, before closed ones have gone
PROOF = 5.0  # seconds to show a certificate, where one is demanded
WAIT = 0.1  # seconds until the next try, where no descriptor is left for a connection
SILENT = 60.0  # seconds between two complaints about that

# seconds of silence, seconds between two probes, probes without an answer
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class LimitedConnection(socket.socket):
    """An accepted connection, which counts against the limits of `ConnectionLimiter` until it is closed."""

    proved = False  # it has shown a certificate of the cluster
    since = 0.0  # when it was accepted; monotonic seconds
    answering: Callable[[], bool] = staticmethod(
        lambda: False
    )  # whether its request has come whole, and its answer has not gone
    slow: Callable[[], None] = staticmethod(lambda: None)  # counts that it has taken too long

    def enter(self, inside: "dict[LimitedConnection, str]", who: str) -> None:
        """Add this connection to `inside`, the connections that are counted with the name of their client. `who`: the
        client of this one.
        """
        self._inside = inside
        self.since = time.monotonic()
        inside[self] = who

    def serve(self, answering: Callable[[], bool]) -> None:
        """From now on `answering` tells whether a request has come whole and its answer has not gone."""
        self.answering = answering

    def prove(self) -> None:
        """Note that the other side has shown a valid certificate of the cluster."""
        self.proved = True

    def notice_loss(self) -> None:
        """Have the kernel close the connection in some 25 seconds where the other machine is lost, and nobody says so."""
        with contextlib.suppress(OSError):  # it has gone by itself
            self.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                self.setsockopt(socket.IPPROTO_TCP, option, value)

    def shut_down(self) -> None:
        """Shut the connection down; it no longer counts for its client, and the event loop notices and closes it."""
        self._inside[self] = ""
        with contextlib.suppress(OSError):  # it has gone by itself
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, and stop counting it."""
        self._inside.pop(self, None)
        super().close()


class ConnectionLimiter(socket.socket):
    """A listening socket that limits its connections; takes over the descriptor of `plain`. One thread uses it."""

    def __init__(
        self,
        plain: socket.socket,
        each: int = EACH,
        most: int = MOST,
        admits: Callable[[str], bool] | None = None,
        slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`admits`: may this address connect? Where it is given, connections without a certificate are closed after 5 s, and first,
        where they have a quarter of the places.

        `slow` is called with the address of each connection that was closed because it took too long.
        """
        super().__init__(fileno=plain.detach())
        self._admits, self._slow = admits, slow
        self._inside: dict[LimitedConnection, str] = {}  # in the order of their coming
        self._complained = -SILENT
        self._each, self._most = each, most

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection and close the oldest of too many. Where descriptors have run out, it waits briefly and raises
        BlockingIOError: for any other error an event loop would retry and log without pause.
        """
        try:
            fd, address = self._accept()  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            self._wait(error)
            raise BlockingIOError from None
        connection = LimitedConnection(fileno=fd)
        if self._admits is not None and not self._admits(str(address[0])):
            connection.detach()
            os.close(fd)
            raise BlockingIOError  # the event loop asks for the next one
        connection.enter(self._inside, _who(connection, address))
        if self._admits is not None:
            connection.notice_loss()
        connection.slow = partial(self._slow, str(address[0]) if address else "")
        self._close_surplus(connection)
        return connection, address

    def _close_surplus(self, connection: LimitedConnection) -> None:
        """Close the oldest other connection of the same client where it has too many, else the oldest of all others."""
        who = self._inside[connection]
        if self._admits is not None:
            self._close_unproved(connection.since)
        before = [(one, name) for one, name in self._inside.items() if one is not connection]
        same = [one for one, name in before if name == who]
        others = [one for one, name in before if name not in ("", _OURS)]
        limit = self._most if who == _OURS else self._each
        if len(same) >= limit:
            _least(same, limit).shut_down()
        elif who != _OURS and len(others) >= self._most:
            _least(others, self._most).shut_down()

    def _close_unproved(self, now: float) -> None:
        for one, name in list(self._inside.items()):
            if name and not one.proved and now - one.since > PROOF:
                one.slow()
                one.shut_down()

    def _wait(self, error: OSError) -> None:
        """Pause before the next try: no descriptor is left. Open connections are served meanwhile."""
        if time.monotonic() - self._complained >= SILENT:
            self._complained = time.monotonic()
            log.warning("nobody more can be let in to ask: %s", os.strerror(error.errno or 0))
        time.sleep(WAIT)


def _least(connections: list[LimitedConnection], limit: int) -> LimitedConnection:
    """The oldest that is not being answered: of those without a certificate where they have a quarter of the places, else of all,
    so that neither strangers nor who has shown one keeps newcomers out.
    """
    strangers = [one for one in connections if not one.proved]
    return min(
        strangers if len(strangers) >= limit // 4 else connections, key=lambda one: one.answering()
    )


_OURS = "ours"


def _who(connection: socket.socket, address: Any) -> str:
    peer = peer_of(connection)
    if peer is None:
        return f"address {source_of(address[0])}" if isinstance(address, tuple) else "address"
    return _OURS if peer.uid in (0, os.geteuid()) else f"uid {peer.uid}"
