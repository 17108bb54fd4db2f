"""Authentication over TCP: by the agent's token, in a header or in the login form, which opens a session."""

import asyncio
import hmac
import platform
from pathlib import Path
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from mldebug.core.errors import MldebugError
from mldebug.web import frame
from mldebug_agents.web.access.same_origin import (
    BY_NAME,
    cookie_name,
    forged,
    is_loopback,
    own_names,
    refused_origin,
)
from mldebug_agents.web.access.sessions import LIFE, Sessions
from mldebug_agents.web.access.token_file import token_of
from mldebug_agents.web.responses import HEADERS, Viewer, html, message_page

MAX_FORM = 16_384  # bytes
PATIENCE = 10.0  # seconds for all of it
LOGIN = "/login"
NO_PAGES = "By TCP there are pages only with agent.token_file. At the agent's socket they need no setting: `mldebug web` says how."


class TokenAuth:
    """Checks the token or session of a request. A user with the token may see everything."""

    def __init__(
        self,
        token_file: Path | None,
        sessions: Sessions,
        *,
        home: str = "/runs",
        none: str = NO_PAGES,
    ) -> None:
        """`sessions` counts wrong tokens on all routes. `home`: the page after a login; `none`: a sentence for where there is no token."""
        self._token_file, self._sessions = token_file, sessions
        self._home, self._none = home, none

    def routes(self) -> list[Route]:
        """The routes for login and logout."""
        return [
            Route(LOGIN, self._show_form),
            Route(LOGIN, self._post, methods=["POST"]),
            Route("/logout", self._leave, methods=["POST"]),
        ]

    def viewer(self, request: Request) -> Viewer | Response:
        """The user of a request, by its token header or session cookie; otherwise the response to send: a redirect to the
        login page, or an error.
        """
        token = self._token_for(request)
        if isinstance(token, Response):
            return token
        if shown := request.headers.get("authorization", ""):
            right = _same(shown, f"Bearer {token}")
            return self._tried(request, right) or Viewer(None)
        if self._sessions.holds(request.cookies.get(cookie_name(request.headers), ""), token):
            return Viewer(None, leave=True)
        return RedirectResponse(LOGIN, 303, HEADERS)

    def shown(self, request: Request) -> bool | Response:
        """True where the header has the right token, False where it has none or no token can be read, and the refusal to
        send for a wrong one.
        """
        shown = request.headers.get("authorization", "")
        if not shown or self._token_file is None:
            return False
        try:
            right = _same(shown, f"Bearer {token_of(self._token_file)}")
        except MldebugError:
            return False
        return self._tried(request, right) or True

    def _token_for(self, request: Request) -> str | Response:
        """Read anew each time: who changes the file ends all sessions."""
        if self._token_file is None:
            return PlainTextResponse(f"{self._none}\n", 403, HEADERS)
        if why := refused_origin(
            request.headers, local=False, names=lambda: own_names(platform.node())
        ):
            return message_page(421, f"Not answered: {why}.", BY_NAME)
        try:
            return token_of(self._token_file)
        except MldebugError:  # its path is nobody's business there
            return message_page(503, "The agent's token cannot be read.", "See agent.token_file.")

    def _tried(self, request: Request, right: bool) -> Response | None:
        """Count one try. None where the token is right, else the refusal: 401, or 429 after too many wrong ones."""
        allowed = self._sessions.tries(_address(request), right=right)
        if allowed and right:
            return None
        if allowed:
            answer = message_page(401, "That is not the agent's token.")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        answer = message_page(429, "Too many wrong tokens.", "Wait a minute, then try again.")
        answer.headers["Retry-After"] = "60"
        return answer

    def _show_form(self, request: Request) -> Response:
        viewer = self.viewer(request)
        if isinstance(viewer, Viewer):
            return RedirectResponse(self._home, 303, HEADERS)
        return _form(request) if viewer.status_code == 303 else viewer

    async def _post(self, request: Request) -> Response:
        """The token comes as a form; a right one opens a session."""
        if forged(request.headers):
            return message_page(403, "Another site's page has sent this.")
        try:
            body = await asyncio.wait_for(_body(request), PATIENCE)
        except TimeoutError:
            return message_page(408, "It was not complete in time.")
        if body is None:
            return message_page(413, "That is no token.")
        return await run_in_threadpool(self._log_in, request, body)

    def _log_in(self, request: Request, body: str) -> Response:
        token = self._token_for(request)
        if isinstance(token, Response):
            return token
        right = _same(parse_qs(body).get("token", [""])[0].strip(), token)
        refused = self._tried(request, right)
        if refused is not None:
            wrong = refused.status_code == 401
            return _form(request, "That is not the agent's token.", 401) if wrong else refused
        answer = RedirectResponse(self._home, 303, HEADERS)
        cookie = cookie_name(request.headers)
        opened = self._sessions.open(token)
        secure = request.headers.get("origin", "").startswith("https:")  # to a proxy before us
        answer.set_cookie(
            cookie, opened, max_age=int(LIFE), httponly=True, samesite="strict", secure=secure
        )
        return answer

    def _leave(self, request: Request) -> Response:
        if forged(request.headers):
            return message_page(403, "Another site's page has sent this.")
        cookie = cookie_name(request.headers)
        self._sessions.close(request.cookies.get(cookie, ""))
        answer = RedirectResponse(LOGIN, 303, HEADERS)
        answer.delete_cookie(cookie, httponly=True, samesite="strict")
        return answer


def _form(request: Request, trouble: str = "", status: int = 200) -> Response:
    clear = request.url.scheme != "https" and not is_loopback(_address(request))
    return html(frame.plain("frame/login", "Log in", trouble=trouble, clear=clear), status=status)


async def _body(request: Request) -> str | None:
    """None where it is too large, of which nothing more is read."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            return None
    return body.decode(errors="replace")


def _same(shown: str, wanted: str) -> bool:
    return hmac.compare_digest(shown.encode(errors="replace"), wanted.encode())


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
