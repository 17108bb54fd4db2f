"""Who is inside a door, and how many: whoever holds connections and says nothing gives way to whoever asks.

A door lets in at most `EACH` of one guest (a user at the Unix socket, an address by TCP) and `MOST` of all; the next one
is let in and the longest of them is sent away. root and the agent's own user have a place apart, so nobody can lock them out.
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

from mldebug_agents.web.peer_credentials import peer_of

log = logging.getLogger("mldebug")

EACH, MOST = 8, 32
BACKLOG = 32  # taken in at one turn of the loop, before those who were sent away have left
PROOF = 5.0  # seconds to prove that one belongs here, where that is asked for
WAIT = 0.1  # seconds until the next try, where no descriptor is left for a guest
SILENT = 60.0  # seconds between two complaints about that

_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class LimitedConnection(socket.socket):
    """One connection; its place is free when it is closed."""

    proved = False  # it has shown that it belongs here
    since = 0.0  # when it came in; monotonic
    slow: Callable[[], None] = staticmethod(lambda: None)  # counts that it has taken too long

    def enter(self, inside: "dict[LimitedConnection, str]", who: str) -> None:
        """Take a place."""
        self._inside = inside
        self.since = time.monotonic()
        inside[self] = who

    def send_away(self) -> None:
        """Hang up: the event loop sees the end of the connection, and closes it."""
        self._inside[self] = ""
        with contextlib.suppress(OSError):  # it has gone by itself
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it and give up the place."""
        self._inside.pop(self, None)
        super().close()


class ConnectionLimiter(socket.socket):
    """A listening socket that counts its guests; takes the descriptor of `plain` over. One thread uses it."""

    def __init__(
        self,
        plain: socket.socket,
        each: int = EACH,
        most: int = MOST,
        admits: Callable[[str], bool] | None = None,
        slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`admits`: may this address come in? Then who has proved nothing gives way first, and soon by itself.

        `slow` hears the address of each guest that was sent away because it took too long.
        """
        super().__init__(fileno=plain.detach())
        self._admits, self._slow = admits, slow
        self._inside: dict[LimitedConnection, str] = {}  # in the order of their coming
        self._complained = -SILENT
        self._each, self._most = each, most

    def accept(self) -> tuple[socket.socket, Any]:
        """Let one in. Never raises for want of descriptors: an event loop would try again at once, and log each try."""
        try:
            fd, address = self._accept()  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno not in _NO_MORE:
                raise
            self._wait(error)
            raise BlockingIOError from None
        guest = LimitedConnection(fileno=fd)
        if self._admits is not None and not self._admits(str(address[0])):
            guest.detach()
            os.close(fd)
            raise BlockingIOError  # the event loop asks for the next one
        guest.enter(self._inside, _who(guest, address))
        guest.slow = partial(self._slow, str(address[0]) if address else "")
        self._make_room(guest)
        return guest, address

    def _make_room(self, guest: LimitedConnection) -> None:
        """Send the longest away of those that have the same name, or else the same right to be here."""
        who = self._inside[guest]
        inside = list(self._inside.items())
        if self._admits is not None:
            self._send_silent_away(guest.since)
            inside.sort(key=lambda pair: pair[0].proved)  # stable: the longest of them first
        same = [one for one, name in inside if name == who]
        others = [one for one, name in inside if name not in ("", _OURS)]
        limit = self._most if who == _OURS else self._each
        if len(same) > limit:
            same[0].send_away()
        elif who != _OURS and len(others) > self._most:
            others[0].send_away()

    def _send_silent_away(self, now: float) -> None:
        for one, name in list(self._inside.items()):
            if name and not one.proved and now - one.since > PROOF:
                one.slow()
                one.send_away()

    def _wait(self, error: OSError) -> None:
        """Whoever waits outside stays there; those inside are served meanwhile."""
        if time.monotonic() - self._complained >= SILENT:
            self._complained = time.monotonic()
            log.warning("nobody more can be let in to ask: %s", os.strerror(error.errno or 0))
        time.sleep(WAIT)


_OURS = "ours"


def _who(guest: socket.socket, address: Any) -> str:
    peer = peer_of(guest)
    if peer is None:
        return f"address {address[0]}" if isinstance(address, tuple) else "address"
    return _OURS if peer.uid in (0, os.geteuid()) else f"uid {peer.uid}"
