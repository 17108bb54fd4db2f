"""The agent's HTTP servers: a Unix socket for people on this node, TCP for Prometheus. Both serve the last snapshot only.

Each has a thread with an event loop; a scrape never touches the node. On TCP there are /metrics, /healthz and /readyz
without credentials, and with a token the route for alerts and the web pages; everything else goes through the socket (SO_PEERCRED).
"""

import asyncio
import platform
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mldebug.config.schema import AgentConfig
from mldebug.core.plugins import create_all
from mldebug.goodput.scalars.history import history_list, history_of
from mldebug.jobs.run_records.model import record_list, record_of
from mldebug.status.snapshot import Snapshot, encode
from mldebug_agents.web.access.request_watch import watched
from mldebug_agents.web.access.same_origin import BY_NAME, SameOriginOnly, refused_host
from mldebug_agents.web.access.sessions import Sessions
from mldebug_agents.web.access.token_file import warn_of_token
from mldebug_agents.web.alertmanager_route import PATH as ALERTS
from mldebug_agents.web.alertmanager_route import AlertmanagerRoute, Answer
from mldebug_agents.web.connection_limiter import BACKLOG, ConnectionLimiter
from mldebug_agents.web.control_requests import answered, carry_out, not_found, refused
from mldebug_agents.web.listeners import open_tcp
from mldebug_agents.web.page_routes import PageRoutes
from mldebug_agents.web.peer_credentials import group_number, may_see_all, view
from mldebug_agents.web.peer_protocol import PeerProtocol
from mldebug_agents.web.responses import for_nobody_else, peer_at

PEERS_EACH, PEERS = 32, 1024  # connections of one node, and of all
TURN = 1.0  # seconds between two turns of an idle server; the Date header is as old

Verb = Callable[[Mapping[str, str]], object]
"""Does what was asked for with these parameters and returns a struct; an MldebugError says why it cannot."""

OwnVerb = Callable[[Mapping[str, str], int | None], object]
"""The same of the runs of one user alone; None: of everybody's."""


class SlowPollServer(uvicorn.Server):
    """A uvicorn server whose loop wakes once a second instead of ten times a second, which cost 0.2 % of a core for each idle
    socket.

    `leave` ends it at once; it may be called from any thread, even before the server runs.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = asyncio.Event()

    def leave(self) -> None:
        """Stop taking new connections, and close the open ones soon."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._left.set)

    async def main_loop(self) -> None:
        """The server's main loop; it replaces uvicorn's, which wakes ten times a second."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), TURN)


class HttpServers:
    """HTTP servers, each on a listener of its own with a thread of its own, and bounded connections."""

    def __init__(self) -> None:
        self._servers: list[tuple[SlowPollServer, threading.Thread]] = []
        self._stopped = False

    def serve_peers(
        self,
        app: Starlette,
        listener: socket.socket,
        context: ssl.SSLContext,
        admits: Callable[[str], bool] = lambda _: True,
        slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Serve other agents on this listener; a client without a certificate that `context` accepts fails in the
        handshake.

        `admits`: whether an address may connect at all. `slow`: called with the address of a client that took too long.
        """
        self.serve(app, ConnectionLimiter(listener, PEERS_EACH, PEERS, admits, slow), context)

    def stop(self, timeout: float = 0.5) -> None:
        """Stop all servers; waits at most `timeout` seconds for all of them."""
        deadline = time.monotonic() + timeout
        self._stopped = True
        servers = list(self._servers)
        for server, _ in servers:
            server.leave()
        for _, thread in servers:
            thread.join(max(0.0, deadline - time.monotonic()))

    def serve(
        self, app: Starlette, listener: socket.socket, context: ssl.SSLContext | None = None
    ) -> SlowPollServer:
        """Serve an app on this listener in a thread of its own, by TLS where there is a `context`."""
        # asyncio's own loop: another one would not ask our `ConnectionLimiter` to accept. uvicorn warns of each request that is none, and
        # whoever reaches the port could fill our log with that.
        config = uvicorn.Config(_without_hang_ups(for_nobody_else(app)), log_level="error", log_config=None, access_log=False, lifespan="off", loop="asyncio",
                                timeout_keep_alive=5, backlog=BACKLOG, http=PeerProtocol, ws="none", proxy_headers=False,
                                timeout_graceful_shutdown=1, h11_max_incomplete_event_size=16384)  # fmt: skip
        config.load()
        config.ssl = context  # uvicorn itself reads certificates from files alone
        server = SlowPollServer(config)
        thread = threading.Thread(
            target=server.run,
            kwargs={
                "sockets": [
                    listener
                    if isinstance(listener, ConnectionLimiter)
                    else ConnectionLimiter(listener)
                ]
            },
            name="mldebug-server",
            daemon=True,
        )
        thread.start()
        self._servers = [one for one in self._servers if one[1].is_alive()]
        self._servers.append((server, thread))
        return server


class AgentServer(HttpServers):
    """Holds the newest snapshot and serves it over HTTP."""

    def __init__(self, settings: AgentConfig) -> None:
        super().__init__()
        self.settings = settings
        self.group = group_number(settings.group)
        self.snapshot: Snapshot | None = None
        self.verbs: dict[str, Verb] = {}  # by path: what a POST does, for who may see all
        self.own_verbs: dict[str, OwnVerb] = {}  # the same, for everybody
        self.take_alerts: Answer | None = None  # until there are verbs
        (self._prometheus,) = create_all("expositions")
        self._private_server: SlowPollServer | None = None
        self._node = platform.node()
        sessions = Sessions()
        self.alerts = AlertmanagerRoute(settings.token_file, sessions, lambda: self.take_alerts)
        self.published_at = time.monotonic()
        self.pages = PageRoutes(
            settings.state_dir,
            settings.token_file,
            sessions,
            self.group,
            snapshot=lambda: self.snapshot,
            age=lambda: time.monotonic() - self.published_at,
        )

    def serve_verbs(
        self, verbs: Mapping[str, Verb], own_verbs: Mapping[str, OwnVerb], alerts: Answer
    ) -> None:
        """Answer POSTs by path: `verbs` for users who may see all, `own_verbs` for everybody, `alerts` for Alertmanager."""
        self.verbs, self.own_verbs = dict(verbs), dict(own_verbs)
        self.take_alerts = alerts

    def publish(self, snapshot: Snapshot, at: float | None = None) -> None:
        """Serve this snapshot from now on. `at`: when the main loop made it (monotonic seconds); None: just now."""
        self._prometheus.publish(snapshot)  # first: whoever sees a snapshot may ask for its metrics
        self.snapshot = snapshot
        self.published_at = time.monotonic() if at is None else at

    def start(self) -> None:
        """Listen on TCP, if an address is configured. Raises UsageError where it is in use. `serve_socket` serves the Unix
        socket.
        """
        if self.settings.listen:
            warn_of_token(self.settings.token_file)
            self.serve_tcp(open_tcp(self.settings.listen))

    def serve_tcp(self, listener: socket.socket) -> None:
        """Serve this listening TCP socket: metrics for everybody, pages and alerts for requests with the token."""
        alerts = Route(ALERTS, self.alerts.post, methods=["POST"])
        self.serve(Starlette(routes=[*self._public(), alerts, *self.pages.by_tcp()]), listener)

    def serve_socket(self, listener: socket.socket | None) -> None:
        """Serve this listening Unix socket, in place of an earlier one; None: serve no other. May be called from any thread.
        After `stop` it is closed at once.
        """
        if self._stopped:
            if listener is not None:
                listener.close()
            return
        before, self._private_server = self._private_server, None
        if before is not None:
            before.leave()  # its socket file went with the state dir
        if listener is None:
            return
        routes = [*self._public(), *self._private(), *self.pages.at_socket()]
        app = Starlette(routes=routes, middleware=[Middleware(SameOriginOnly)])
        self._private_server = self.serve(app, listener)

    def _public(self) -> list[Route]:
        return [
            Route("/metrics", self._metrics),
            Route("/healthz", lambda _: PlainTextResponse("ok\n")),
            Route("/readyz", self._ready),
        ]

    def _private(self) -> list[Route]:
        verbs = [
            Route(path, partial(self._post, verb), methods=["POST"])
            for path, verb in self.verbs.items()
        ]
        verbs += [
            Route(path, partial(self._post_for_own_runs, verb), methods=["POST"])
            for path, verb in self.own_verbs.items()
        ]
        own = [
            Route("/api/v1/status", self._status),
            Route("/api/v1/jobs", self._jobs),
            Route("/api/v1/history", self._history),
            Route("/api/v1/records", self._records),
        ]
        return [*own, *verbs]

    def _post(self, verb: Verb, request: Request) -> Response:
        """Answer a POST to a verb; allowed are root, the agent's user, or a member of its group."""
        allowed = may_see_all(peer_at(request), self.group)
        status, body = carry_out(verb, request.query_params) if allowed else refused()
        return Response(body, status_code=status, media_type="application/json")

    async def _post_for_own_runs(self, verb: OwnVerb, request: Request) -> Response:
        """Answer a POST to a verb that every user may use for the own runs."""
        peer = peer_at(request)
        if peer is None:
            return self._post(lambda _: None, request)
        whose = None if may_see_all(peer, self.group) else peer.uid
        async with watched(request.receive):
            status, body = await run_in_threadpool(
                carry_out, lambda parameters: verb(parameters, whose), request.query_params
            )
        return Response(body, status_code=status, media_type="application/json")

    def _metrics(self, request: Request) -> Response:
        peer, accept = peer_at(request), request.headers.get("accept", "")
        if peer is None and (why := refused_host(request.headers, self._node)):
            return PlainTextResponse(f"Not answered: {why}. {BY_NAME}\n", status_code=421)
        if self.snapshot is None:
            return PlainTextResponse("not ready\n", status_code=503)
        if peer is None:  # by TCP they are public
            names = self.settings.public_names or self.pages.token_auth.shown(request)
            if isinstance(names, Response):
                return names
            body, kind = self._prometheus.scrape(accept, names=names)
        else:
            body, kind = self._prometheus.render(view(self.snapshot, peer, self.group), accept)
        return Response(body, media_type=kind)

    def _ready(self, request: Request) -> Response:
        ready = self.snapshot is not None
        return PlainTextResponse(
            "ready\n" if ready else "starting\n", status_code=200 if ready else 503
        )

    def _status(self, request: Request) -> Response:
        if self.snapshot is None:
            return Response(b"{}", status_code=503, media_type="application/json")
        visible = view(self.snapshot, peer_at(request), self.group)
        return Response(encode(visible), media_type="application/json")

    def _jobs(self, request: Request) -> Response:
        """The jobs that the last search of this node has found, with all ranks that it knows; those that this user may see."""
        if self.snapshot is None:
            return Response(b"{}", status_code=503, media_type="application/json")
        status, body = answered(view(self.snapshot, peer_at(request), self.group).found)
        return Response(body, status_code=status, media_type="application/json")

    def _history(self, request: Request) -> Response:
        """The history of `?run=`, or of all runs what there is; of the runs that this user may see."""
        if self.snapshot is None:
            return Response(b"{}", status_code=503, media_type="application/json")
        visible = view(self.snapshot, peer_at(request), self.group)
        run = request.query_params.get("run")
        found = (
            history_list(visible.histories) if run is None else history_of(visible.histories, run)
        )
        return _found(found, "history", "GET /api/v1/history lists the runs")

    def _records(self, request: Request) -> Response:
        """With what the run of `?run=` was started, or the list of all that are recorded; of the runs that this user may see."""
        if self.snapshot is None:
            return Response(b"{}", status_code=503, media_type="application/json")
        visible = view(self.snapshot, peer_at(request), self.group).run_records
        run = request.query_params.get("run")
        found = record_list(visible) if run is None else record_of(visible, run)
        return _found(found, "record", "GET /api/v1/records lists the runs")


def _found(found: object | None, what: str, way_out: str) -> Response:
    status, body = (
        answered(found)
        if found is not None
        else not_found(f"no {what} is kept of a run with this id", way_out)
    )
    return Response(body, status_code=status, media_type="application/json")


def _without_hang_ups(app: ASGIApp) -> ASGIApp:
    """The app, for which a client that hangs up in the middle of a request is no error: each would be a traceback in the log."""

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await app(scope, receive, send)

    return quiet
