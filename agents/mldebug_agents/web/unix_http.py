"""HTTP over the agent's Unix socket: the client side."""

import http.client
import socket
import time
from pathlib import Path

from mldebug_agents.web.listeners import SOCKET, reachable

TIMEOUT = 2.0
BUSY = 0.02  # seconds until the next try, where the socket's backlog is full


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to the agent's socket in this state dir, or to the socket file `name` there; `timeout`: seconds for each step."""

    def __init__(self, state_dir: Path, timeout: float = TIMEOUT, name: str = SOCKET) -> None:
        super().__init__("localhost", timeout=timeout)
        self._state_dir, self._name = state_dir, name

    def connect(self) -> None:
        """Connect to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        deadline = time.monotonic() + TIMEOUT
        with reachable(self._state_dir, self._name) as path:
            while not self._connected(path, deadline):
                time.sleep(BUSY)

    def _connected(self, path: str, deadline: float) -> bool:
        """Try to connect once. False where the backlog is full, which the kernel says at once, whatever the timeout."""
        try:
            self.sock.connect(path)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            return False
        return True
