"""The HTTP protocol of all our servers: each request knows who sent it, and connections that say nothing are closed."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from mldebug_agents.web.peer_credentials import peer_of

FIRST_WORDS = 5.0  # seconds for the first request to be complete
PROVED_WORDS = (
    20.0  # the same for who has shown a certificate: he may wait until others are ready, too
)


class PeerProtocol(H11Protocol):
    """HTTP protocol that gives each request its peer's identity (`request.state.peer`, with TLS `certificate`), and closes idle connections."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Read the credentials of the process that connected, once per connection."""
        link: Any = transport.get_extra_info("socket")
        try:
            peer = peer_of(link)
        except (OSError, AttributeError):
            peer = None
        certificate = transport.get_extra_info("peercert") or {}
        if (connection := _limited(link)) is not None:
            connection.serve(self._answering)
            if certificate:
                connection.prove()
        self.app_state = {**self.app_state, "peer": peer, "certificate": certificate}
        super().connection_made(transport)
        seconds = PROVED_WORDS if certificate else FIRST_WORDS
        self._patience = self.loop.call_later(seconds, self._hang_up, link)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer of a connection that has ended."""
        self._patience.cancel()
        super().connection_lost(exc)

    def _answering(self) -> bool:
        """Whether a request has come whole, and its answer has not gone."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _hang_up(self, link: Any) -> None:
        if self.cycle is None:  # uvicorn's own timeout begins after the first answer
            if (connection := _limited(link)) is not None:
                connection.slow()
            self.transport.abort()


def _limited(link: Any) -> Any:
    """Return the `LimitedConnection` behind a socket; None where it is another kind."""
    connection = getattr(link, "_sock", None)  # asyncio shows a socket's outside only
    return connection if hasattr(connection, "proved") else None
