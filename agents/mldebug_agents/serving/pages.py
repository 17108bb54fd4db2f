"""The web pages: at the socket everybody sees his own, by TCP whoever has shown the agent's token sees all.

A page only reads the last snapshot and reports on disk. What is not a GET is `/login` and `/logout` alone.
"""

import hashlib
import hmac
import platform
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from mldebug.entries import Entry
from mldebug.errors import AccessError, MldebugError
from mldebug.paging import frame
from mldebug.paging.asked import Asked
from mldebug.snapshot import Snapshot
from mldebug_agents.serving.alertdoor import token_of
from mldebug_agents.serving.origins import forged, is_loopback, misled
from mldebug_agents.serving.peers import Peer, may_see_all, view
from mldebug_agents.serving.sessions import LIFE, Sessions
from mldebug_agents.serving.shelf import Shelf

COOKIE = "mldebug_session"
MAX_FORM = 16_384  # bytes
MAX_ID = 512
FOREVER = "public, max-age=31536000, immutable"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser hides the origin of our own forms
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache, private",
}
NO_PAGES = "By TCP there are pages only with agent.token_file. At the agent's socket they need no setting: `mldebug web` says how."


class Viewer(NamedTuple):
    """Who looks; `uid` None: he may see everything."""

    uid: int | None
    leave: bool = False  # he has logged in, and may log out


class PageDoor:
    """Makes routes of the pages; `told` gives the last snapshot."""

    def __init__(
        self,
        state_dir: Path,
        token_file: Path | None,
        group: int | None,
        told: Callable[[], Snapshot | None],
    ) -> None:
        self._token_file = token_file
        self._group = group
        self._told = told
        self._shelf = Shelf(state_dir)
        self.sessions = Sessions()

    def at_socket(self) -> list[Route]:
        """For people on this node; who comes from elsewhere was refused before."""
        return self._routes(self._peer)

    def by_tcp(self) -> list[Route]:
        """For whoever shows the token."""
        forms = [
            Route("/login", self._login_form),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
        ]
        return [*self._routes(self._bearer), *forms]

    def _routes(self, who: "Callable[[Request], Viewer | Response]") -> list[Route]:
        def page(name: str) -> Callable[[Request], Response]:
            return lambda request: self._page(name, who, request)

        def guarded(answer: Callable[[Viewer, Request], Response]) -> Callable[[Request], Response]:
            def get(request: Request) -> Response:
                viewer = who(request)
                return viewer if isinstance(viewer, Response) else answer(viewer, request)

            return get

        home = guarded(lambda _, __: RedirectResponse("/runs", headers=HEADERS))
        return [
            Route("/", home),
            Route("/report", guarded(self._report)),
            Route("/look.css", lambda _: _look(frame.style(), "text/css")),
            Route("/look.js", lambda _: _look(frame.script(), "text/javascript")),
            *(Route(f"/{name}", page(name)) for name in frame.pages()),
        ]

    # --- who looks -------------------------------------------------------------------------------

    def _peer(self, request: Request) -> Viewer:
        peer = _peer_of(request)
        if peer is None or may_see_all(peer, self._group):
            return Viewer(-1 if peer is None else None)
        return Viewer(peer.uid)

    def _bearer(self, request: Request) -> Viewer | Response:
        """By the header or by the cookie; else how to get in."""
        if self._token_file is None:
            return PlainTextResponse(f"{NO_PAGES}\n", 403, HEADERS)
        if why := misled(request.headers, local=False, node=platform.node()):
            way_out = "open it by this node's name or address"
            return _said(421, f"Not answered: {why}.", f"Way out: {way_out}.")
        token = self._token()
        if token is None:
            return _said(503, "The agent's token cannot be read.", "See agent.token_file.")
        shown = request.headers.get("authorization", "")
        if shown:
            return self._by_header(shown, token, request)
        if self.sessions.holds(request.cookies.get(COOKIE, ""), token):
            return Viewer(None, leave=True)
        return RedirectResponse("/login", 303, HEADERS)

    def _by_header(self, shown: str, token: str, request: Request) -> Viewer | Response:
        address = _address(request)
        if not self.sessions.may_try(address):
            return _too_often()
        if hmac.compare_digest(shown.encode(errors="replace"), f"Bearer {token}".encode()):
            return Viewer(None)
        self.sessions.failed(address)
        answer = _said(401, "The token is not the agent's.")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _token(self) -> str | None:
        """Read anew each time: who changes the file ends all sessions."""
        try:
            return token_of(self._token_file) if self._token_file else None
        except (OSError, MldebugError):
            return None

    def _login_form(self, request: Request) -> Response:
        viewer = self._bearer(request)
        if isinstance(viewer, Viewer):
            return RedirectResponse("/runs", 303, HEADERS)
        return _form(request) if viewer.status_code == 303 else viewer

    async def _login(self, request: Request) -> Response:
        """The token comes as a form; a right one opens a session."""
        if forged(request.headers):
            return _said(403, "Another site's page has sent this.")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM:
                return _said(413, "That is no token.")
        return await run_in_threadpool(self._log_in, request, body)

    def _log_in(self, request: Request, body: bytes) -> Response:
        refused = self._bearer(request)
        if isinstance(refused, Response) and refused.status_code not in (303, 401):
            return refused
        address, token = _address(request), self._token() or ""
        if not self.sessions.may_try(address):
            return _too_often()
        shown = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
        if not hmac.compare_digest(shown.encode(errors="replace"), token.encode()):
            self.sessions.failed(address)
            return _form(request, "That is not the agent's token.", 401)
        answer = RedirectResponse("/runs", 303, HEADERS)
        answer.set_cookie(COOKIE, self.sessions.open(token), max_age=int(LIFE), httponly=True,
                          samesite="strict")  # fmt: skip
        return answer

    def _logout(self, request: Request) -> Response:
        if forged(request.headers):
            return _said(403, "Another site's page has sent this.")
        self.sessions.close(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", 303, HEADERS)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    # --- what is shown ---------------------------------------------------------------------------

    def _page(
        self, name: str, who: "Callable[[Request], Viewer | Response]", request: Request
    ) -> Response:
        viewer = who(request)
        if isinstance(viewer, Response):
            return viewer
        told = self._told()
        if told is None:
            return _said(503, "The agent has not looked yet.", "Load this again in a moment.")
        seen = told if viewer.uid is None else view(told, _peer_of(request), self._group)
        entries, unread = self._entries(viewer) if frame.pages()[name].reports else ((), "")
        wanted = request.query_params.get("id", "")[:MAX_ID]
        tag = _tag(name, wanted, viewer, seen, entries, unread)
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=HEADERS | {"ETag": tag})
        asked = Asked(told=seen, id=wanted, entries=entries, unread=unread)
        html = frame.render(name, asked, leave=viewer.leave)
        if html is None:
            return _said(404, "There is no such thing here, or it is over.", link="/runs")
        return _html(html, tag=tag)

    def _entries(self, viewer: Viewer) -> tuple[tuple[Entry, ...], str]:
        try:
            return self._shelf.entries(viewer.uid), ""
        except MldebugError as error:
            return (), error.message

    def _report(self, viewer: Viewer, request: Request) -> Response:
        """Made anew from what was checked on reading: whoever owns its folder may have put anything into report.html."""
        wanted = request.query_params.get("id", "")[:MAX_ID]
        try:
            tag = f'"{hashlib.sha256(repr((wanted, viewer.uid, self._shelf.version(wanted, viewer.uid))).encode()).hexdigest()[:24]}"'
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=HEADERS | {"ETag": tag})
            html, policy = self._shelf.page(wanted, viewer.uid, "/incidents")
        except MldebugError as error:
            status = 503 if isinstance(error, AccessError) else 404
            return _said(status, f"{error.message[:1].upper()}{error.message[1:]}.", error.way_out, "/incidents")  # fmt: skip
        return _html(html, f"{policy}; frame-ancestors 'none'", tag)


def _tag(name: str, wanted: str, viewer: Viewer, seen: Snapshot, *shown: object) -> str:
    """The same as long as nothing changes: a snapshot is known by its moment."""
    what = (name, wanted, viewer, seen.started_at, seen.at, frame.version(), *shown)
    return f'"{hashlib.sha256(repr(what).encode(errors="replace")).hexdigest()[:24]}"'


def _html(text: str, policy: str = frame.POLICY, tag: str = "", status: int = 200) -> Response:
    headers = HEADERS | {"Content-Security-Policy": policy} | ({"ETag": tag} if tag else {})
    return HTMLResponse(text.encode(errors="replace"), status, headers)


def _said(status: int, sentence: str, way_out: str = "", link: str = "") -> Response:
    """A page that says one thing."""
    title = {"/runs": "All runs", "/incidents": "All incidents"}.get(link, "")
    html = frame.plain("said", sentence, sentence=sentence, way_out=way_out, link=link, link_title=title)  # fmt: skip
    return _html(html, status=status)


def _form(request: Request, trouble: str = "", status: int = 200) -> Response:
    clear = request.url.scheme != "https" and not is_loopback(_address(request))
    return _html(frame.plain("login", "Log in", trouble=trouble, clear=clear), status=status)


def _too_often() -> Response:
    answer = _said(429, "Too many wrong tokens.", "Wait a minute, then try again.")
    answer.headers["Retry-After"] = "60"
    return answer


def _look(text: str, kind: str) -> Response:
    """No secret, and the same for everybody: its address changes with it."""
    return Response(text, headers=HEADERS | {"Cache-Control": FOREVER}, media_type=kind)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _peer_of(request: Request) -> Peer | None:
    peer = getattr(request.state, "peer", None)
    return peer if isinstance(peer, Peer) else None
