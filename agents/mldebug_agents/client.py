"""Ask the agent of this node over its Unix socket."""

import http.client
import socket
from pathlib import Path

import msgspec

from mldebug.snapshot import Snapshot

TIMEOUT = 2.0
MAX_BYTES = 32 << 20


class _OverUnix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file in place of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(str(self._path))


def ask_agent(state_dir: Path) -> Snapshot | None:
    """The agent's last snapshot, or None where no agent runs here or this user may not ask it."""
    link = _OverUnix(state_dir / "agent.sock")
    try:
        link.request("GET", "/api/v1/status")
        answer = link.getresponse()
        body = answer.read(MAX_BYTES)
        return msgspec.json.decode(body, type=Snapshot) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
    finally:
        link.close()
