"""Relays a browser's GETs from a port on the loopback interface to the agent's socket, as the user who started it.

Everybody on the node can connect to the port, so a browser must first send the key of a link. A link works once: it sets a cookie, and
a new link is printed. Only this user has read a printed link; one that was given to a program stands in that program's arguments, which
everybody may read, so it then counts only from a process of this user.
"""

import hmac
import http.client
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from mldebug_agents.web.access.same_origin import cookie_name, refused_origin
from mldebug_agents.web.access.sessions import digest
from mldebug_agents.web.connection_limiter import BACKLOG, MOST, ConnectionLimiter
from mldebug_agents.web.peer_protocol import PeerProtocol
from mldebug_agents.web.unix_http import UnixConnection

MAX_BODY = 32 << 20  # bytes
TIMEOUT = 15.0  # seconds for an answer of the agent
PASSED = ("if-none-match", "accept")
DROPPED = ("connection", "content-length", "date", "keep-alive", "server", "transfer-encoding")


class Relay:
    """The relay of `mldebug web`. `on_link` is called with the path of each new link, which works for one login.

    `own_only`: a link counts only from a process of this user on this node.
    """

    def __init__(self, state_dir: Path, on_link: Callable[[str], None], *, own_only: bool = False) -> None:  # fmt: skip
        self._state_dir, self._own_only = state_dir, own_only
        self._on_link = on_link
        self._key = ""
        self._inside: set[bytes] = set()
        self._one = threading.Lock()  # two browsers with one link
        self._renew()

    def app(self) -> Starlette:
        """The ASGI app: any path, GET only."""
        return Starlette(routes=[Route("/{path:path}", self._get)])

    def server(self) -> uvicorn.Server:
        """A server for `app` with short timeouts, so that an idle connection is closed after 5 seconds."""
        config = uvicorn.Config(self.app(), log_level="error", access_log=False, lifespan="off", ws="none", loop="asyncio",
                                timeout_keep_alive=5, backlog=BACKLOG, http=PeerProtocol, proxy_headers=False,
                                timeout_graceful_shutdown=1, h11_max_incomplete_event_size=16384)  # fmt: skip
        return uvicorn.Server(config)

    def serve(self, listener: socket.socket) -> None:
        """Serve on this listening socket until Ctrl-C."""
        self.server().run(sockets=[ConnectionLimiter(listener, MOST)])

    def _get(self, request: Request) -> Response:
        if why := refused_origin(request.headers, local=True):
            return PlainTextResponse(f"Not answered: {why}.\n", 403)
        if digest(request.cookies.get(cookie_name(request.headers), "")) in self._inside:
            return self._answer(request)
        shown = request.query_params.get("key", "").encode(errors="replace")
        if self._own_only and not _is_own(request):
            return PlainTextResponse("Not answered: another user of this node asks.\n", 403)
        with self._one:
            if hmac.compare_digest(shown, self._key.encode()):
                return self._let_in(cookie_name(request.headers))
        sentence = "Open the link that `mldebug web` has printed last: each is good once.\n"
        return PlainTextResponse(sentence, 403)

    def _let_in(self, name: str) -> Response:
        cookie = secrets.token_urlsafe(32)
        self._inside.add(digest(cookie))
        self._renew()
        answer = RedirectResponse("/", 303, {"Referrer-Policy": "no-referrer"})
        answer.set_cookie(name, cookie, httponly=True, samesite="strict")
        return answer

    def _renew(self) -> None:
        self._key = secrets.token_urlsafe(24)
        self._on_link(f"/?key={self._key}")

    def _answer(self, request: Request) -> Response:
        """Pass the request on and return the agent's answer."""
        link = UnixConnection(self._state_dir, TIMEOUT)
        target = _target(request)
        headers = {name: request.headers[name] for name in PASSED if name in request.headers}
        try:
            link.request("GET", target, headers=headers)
            answer = link.getresponse()
            body = answer.read(MAX_BODY)
        except (OSError, http.client.HTTPException):
            return PlainTextResponse("The agent does not answer: is it running?\n", 502)
        finally:
            link.close()
        passed = {name: value for name, value in answer.getheaders() if name.lower() not in DROPPED}
        return Response(body, answer.status, passed)


def _target(request: Request) -> str:
    """Return path and query as they were sent, not decoded."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


def _is_own(request: Request) -> bool:
    """Whether the connection comes from a process of this user, by the kernel's tables; False where they do not have it."""
    client, server = request.client, request.scope.get("server")
    if client is None or server is None:
        return False
    return client_uid(client.port, server[1]) == os.geteuid()


def client_uid(port: int, server_port: int, proc: str = "/proc") -> int | None:
    """The user whose socket on the loopback interface has this port and is connected to `server_port`; None where the tables have none."""
    for name in ("tcp", "tcp6"):  # a socket for both versions of IP stands in the second
        try:
            lines = Path(f"{proc}/net/{name}").read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6 has no second table
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 7 and (_port(fields[1]), _port(fields[2])) == (port, server_port):
                return int(fields[7])
    return None


def _port(address: str) -> int:
    """The port of `0100007F:1F90`."""
    return int(address.rpartition(":")[2], 16)
