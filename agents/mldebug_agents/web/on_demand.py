"""The agent's HTTP server before anybody has asked it: nothing but its listening sockets.

What serves HTTP and makes pages and metrics is a quarter of the agent's memory, and where nobody asks none of it is needed. So it
is imported at the first connection, which waits for it.
"""

import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mldebug.config.schema import AgentConfig
from mldebug.status.snapshot import Snapshot
from mldebug_agents.system.child.structs import learn_structs
from mldebug_agents.web.access.token_file import warn_of_token
from mldebug_agents.web.listeners import open_tcp
from mldebug_agents.web.peer_credentials import group_number

if TYPE_CHECKING:
    from mldebug_agents.web.server import AgentServer

log = logging.getLogger("mldebug")

RETRY = 5.0  # seconds after a server could not be made


def make_server(settings: AgentConfig) -> "AgentServer":
    """Import the HTTP server and make one, which serves nothing yet."""
    server: AgentServer = import_module("mldebug_agents.web.server").AgentServer(settings)
    learn_structs()  # other threads use none of what was imported just now
    return server


class OnDemandServer:
    """Holds what an `AgentServer` serves, and makes one when the first client connects. Any thread may call.

    `make`: makes the server, which takes over all listening sockets. The callers wait for it nowhere but in `serve_peers`.
    """

    def __init__(
        self, settings: AgentConfig, make: Callable[[AgentConfig], "AgentServer"] = make_server
    ) -> None:
        """Raises UsageError where this node has no group `agent.group`."""
        group_number(settings.group)
        self.settings, self._make = settings, make
        self._server: AgentServer | None = None
        self._lock = threading.Lock()
        self._tcp: socket.socket | None = None
        self._unix: socket.socket | None = None
        self._verbs: tuple[Mapping[str, Any], Mapping[str, Any], Any] | None = None
        self._published: tuple[Snapshot, float] | None = None  # and when; monotonic seconds
        self._stopped = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._wait, name="mldebug-server", daemon=True)

    def start(self) -> None:
        """Listen on TCP, if an address is configured, and wait for clients. Raises UsageError where the address is in use."""
        if self.settings.listen:
            warn_of_token(self.settings.token_file)
            self._tcp = open_tcp(self.settings.listen)
        self._thread.start()

    def serve_verbs(
        self, verbs: Mapping[str, Any], own_verbs: Mapping[str, Any], alerts: Any
    ) -> None:
        """Answer these requests of commands (`mldebug status` and others) by the Unix socket: see `AgentServer.serve_verbs`."""
        with self._lock:
            self._verbs = verbs, own_verbs, alerts
            if self._server is not None:
                self._server.serve_verbs(*self._verbs)

    def publish(self, snapshot: Snapshot) -> None:
        """Serve this snapshot from now on."""
        with self._lock:
            self._published = snapshot, time.monotonic()
            if self._server is not None:
                self._server.publish(snapshot)

    def serve_socket(self, listener: socket.socket | None) -> None:
        """Serve this listening Unix socket, in place of an earlier one; None: serve no other. After `stop` it is closed at once."""
        with self._lock:
            if self._server is not None:
                self._server.serve_socket(listener)
                return
            before, self._unix = self._unix, listener
            if self._stopped.is_set():
                self._close()
            elif before is not None:
                before.close()
        self._look_again()

    def serve_peers(
        self,
        app: Any,
        listener: socket.socket,
        context: ssl.SSLContext,
        admits: Callable[[str], bool],
        slow: Callable[[str], None],
    ) -> None:
        """See `HttpServers.serve_peers`. The server is made now."""
        server = self._server or self._make(self.settings)
        self._hand_over(server)
        server.serve_peers(app, listener, context, admits, slow)

    def stop(self, timeout: float = 0.5) -> None:
        """Close all listening sockets and stop the server; waits at most `timeout` seconds."""
        self._stopped.set()
        with self._lock:
            server = self._server
            if server is None:
                self._close()
        self._look_again()
        if server is not None:
            server.stop(timeout)

    def _wait(self) -> None:
        """Wait for the first client, then have the server take over."""
        while not self._stopped.is_set() and self._server is None:
            if not self._has_client():
                continue
            try:
                self._hand_over(self._make(self.settings))
            except Exception:
                log.exception("the HTTP server cannot be made, and is tried again")
                self._stopped.wait(RETRY)

    def _has_client(self) -> bool:
        """Wait until a client connects or something else has changed; whether a client waits."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        with self._lock:
            listeners = [one for one in (self._tcp, self._unix) if one is not None]
            for listener in listeners:
                poll.register(listener, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        if self._wake in ready:
            os.eventfd_read(self._wake)
            return False
        return bool(ready)

    def _hand_over(self, server: "AgentServer") -> None:
        """Give the server all that there is by now, unless there is one, or the agent ends."""
        with self._lock:
            if self._server is not None or self._stopped.is_set():
                return
            if self._verbs is not None:
                server.serve_verbs(*self._verbs)
            if self._published is not None:
                server.publish(*self._published)
            if self._tcp is not None:
                server.serve_tcp(self._tcp)
            if self._unix is not None:
                server.serve_socket(self._unix)
            self._tcp = self._unix = None
            self._server = server
        self._look_again()

    def _look_again(self) -> None:
        """Have the waiting thread notice what has changed."""
        os.eventfd_write(self._wake, 1)

    def _close(self) -> None:
        for listener in (self._tcp, self._unix):
            if listener is not None:
                listener.close()
        self._tcp = self._unix = None
