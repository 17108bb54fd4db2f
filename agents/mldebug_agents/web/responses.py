"""HTTP responses of the web pages with their security headers, and the user who requests a page."""

from typing import NamedTuple

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mldebug.web import frame
from mldebug_agents.web.peer_credentials import PeerCredentials

FOREVER = "public, max-age=31536000, immutable"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser hides the origin of our own forms
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache, private",
}
NOBODY_ELSE = (
    "X-Content-Type-Options",
    "Cross-Origin-Resource-Policy",
    "Cache-Control",
)  # on metrics and JSON, too
TWO_LENGTHS = "Not answered: it has Content-Length and Transfer-Encoding.\n"
LINKS = {"/runs": "All runs", "/incidents": "All incidents"}


class Viewer(NamedTuple):
    """The user who requests a page. `uid` None: may see everything."""

    uid: int | None
    leave: bool = False  # he has logged in, and may log out


def for_nobody_else(app: ASGIApp) -> ASGIApp:
    """The app with headers on each response by which browsers neither embed it in pages of other sites nor guess its content type.

    A request that tells its length in two ways is refused: a proxy before us may believe the other, and take what is in one for two.
    """

    async def closed(scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:
            await PlainTextResponse(TWO_LENGTHS, 400, {"Connection": "close"})(scope, receive, send)
            return

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in NOBODY_ELSE:
                    headers.setdefault(name, HEADERS[name])
            await send(message)

        await app(scope, receive, add)

    return closed


def html(text: str, policy: str = frame.POLICY, tag: str = "", status: int = 200) -> Response:
    """An HTML page with the Content-Security-Policy `policy`; `tag`: its ETag, "" for none."""
    headers = HEADERS | {"Content-Security-Policy": policy} | ({"ETag": tag} if tag else {})
    return HTMLResponse(text.encode(errors="replace"), status, headers)


def not_modified(tag: str) -> Response:
    """A 304 response: nothing has changed."""
    return Response(status_code=304, headers=HEADERS | {"ETag": tag})


def message_page(
    status: int,
    sentence: str,
    way_out: str = "",
    link: str = "",
) -> Response:
    """A page with a sentence and what to do about it; `link`: a page to go to."""
    shown = {"sentence": sentence, "way_out": way_out, "link": link, "link_title": LINKS.get(link)}
    return html(frame.plain("frame/message", sentence, **shown), status=status)


def asset(text: str, kind: str) -> Response:
    """A style or script, which browsers may cache for ever: its URL changes with its content."""
    return Response(text, headers=HEADERS | {"Cache-Control": FOREVER}, media_type=kind)


def peer_at(request: Request) -> PeerCredentials | None:
    """The process that sent a request over the Unix socket; None for TCP."""
    peer = getattr(request.state, "peer", None)
    return peer if isinstance(peer, PeerCredentials) else None
