"""The agent's doors: a Unix socket for people on this node, TCP for Prometheus. Both serve the last snapshot only.

One thread with its own event loop; a scrape never touches the node. On TCP there are /metrics, /healthz and /readyz and
nothing else, so that it needs no credentials; everything that shows stacks goes through the socket (SO_PEERCRED).
"""

import contextlib
import logging
import os
import socket
import threading
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mldebug.config import Agent
from mldebug.errors import UsageError
from mldebug.rooms import create_all
from mldebug.snapshot import Snapshot, encode

log = logging.getLogger("mldebug")


class Server:
    """Holds the newest snapshot and serves it."""

    def __init__(self, settings: Agent) -> None:
        self.settings = settings
        self.snapshot: Snapshot | None = None
        (self._prometheus,) = create_all("tellers")
        self._servers: list[uvicorn.Server] = []
        self._threads: list[threading.Thread] = []

    def publish(self, snapshot: Snapshot) -> None:
        """Replace what is served; called by the main loop."""
        self.snapshot = snapshot

    def start(self) -> None:
        """Open the doors; UsageError in words where an address or the socket is taken."""
        if self.settings.listen:
            self._serve(Starlette(routes=self._public()), _tcp(self.settings.listen))
        self._serve(
            Starlette(routes=[*self._public(), *self._private()]),
            _unix(self.settings.state_dir / "agent.sock"),
        )

    def stop(self) -> None:
        """Close the doors; waits at most a second for each."""
        for server in self._servers:
            server.should_exit = True
        for thread in self._threads:
            thread.join(1.0)
        with contextlib.suppress(OSError):
            (self.settings.state_dir / "agent.sock").unlink()

    def _serve(self, app: Starlette, door: socket.socket) -> None:
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=5,
                                limit_concurrency=64, h11_max_incomplete_event_size=16384)  # fmt: skip
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [door]}, name="mldebug-server", daemon=True
        )
        self._servers.append(server)
        self._threads.append(thread)
        thread.start()

    def _public(self) -> list[Route]:
        return [
            Route("/metrics", self._metrics),
            Route("/healthz", lambda _: PlainTextResponse("ok\n")),
            Route("/readyz", self._ready),
        ]

    def _private(self) -> list[Route]:
        return [Route("/api/v1/status", self._status)]

    def _metrics(self, request: Request) -> Response:
        if self.snapshot is None:
            return PlainTextResponse("not ready\n", status_code=503)
        body, kind = self._prometheus.render(self.snapshot, request.headers.get("accept", ""))
        return Response(body, media_type=kind)

    def _ready(self, request: Request) -> Response:
        ready = self.snapshot is not None
        return PlainTextResponse(
            "ready\n" if ready else "starting\n", status_code=200 if ready else 503
        )

    def _status(self, request: Request) -> Response:
        if self.snapshot is None:
            return Response(b"{}", status_code=503, media_type="application/json")
        return Response(encode(self.snapshot), media_type="application/json")


def _tcp(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((host.strip("[]"), int(port)))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot listen on {listen}: {reason}",
            "set another agent.listen, or stop what is there",
        ) from error
    return door


def _unix(path: Path) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(OSError):
        path.unlink()
    try:
        door.bind(str(path))
        os.chmod(path, 0o600)
    except OSError as error:
        raise UsageError(
            f"cannot open the socket {path}: {error.strerror}", "set another agent.state_dir"
        ) from error
    return door
