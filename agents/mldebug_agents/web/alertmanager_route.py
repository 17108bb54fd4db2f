"""The HTTP route of Alertmanager's webhook: needs the agent's token, takes a bounded body in bounded time, answers in JSON."""

import asyncio
import hmac
from collections.abc import Callable
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from mldebug.core.errors import MldebugError
from mldebug_agents.web.access.sessions import Sessions
from mldebug_agents.web.access.token_file import token_of
from mldebug_agents.web.control_requests import ErrorAnswer

PATH = "/api/v1/alerts"
MAX_BODY = 8 << 20  # bytes: ten thousand alerts
PATIENCE = 10.0  # seconds for the whole body

Answer = Callable[[bytes], tuple[int, bytes]]


class AlertmanagerRoute:
    """Takes the alerts that Alertmanager sends by HTTP POST. `handler` returns a function that is given the body, in a thread, and
    returns status and JSON; None as long as the agent is not ready.
    """

    def __init__(
        self, token_file: Path | None, sessions: Sessions, handler: Callable[[], Answer | None]
    ) -> None:
        self._token_file, self._sessions, self._handler = token_file, sessions, handler

    async def post(self, request: Request) -> Response:
        """Answer one POST. 401, 403 or 429: token missing, wrong or tried too often; 408, 413: body late or too large; 503:
        token unreadable or agent not ready; else what the handler answers.
        """
        address = request.client.host if request.client else ""
        shown = request.headers.get("authorization", "")
        refused = await run_in_threadpool(self._refusal, shown, address)
        if refused is not None:
            return refused
        try:
            body = await asyncio.wait_for(_body(request), PATIENCE)
        except TimeoutError:
            return _error(408, "it was not complete in time")
        if body is None:
            return _error(413, f"it is larger than {MAX_BODY >> 20} MiB", "set max_alerts there")
        if (handle := self._handler()) is None:
            return _error(503, "the agent does not look yet", "ask again in a moment")
        status, answer = await run_in_threadpool(handle, body)
        return Response(answer, status_code=status, media_type="application/json")

    def _refusal(self, shown: str, address: str) -> Response | None:
        if self._token_file is None:
            way_out = "agent: {token_file: /etc/mldebug/token}"
            return _error(403, "this agent takes no alerts: it has no token", way_out)
        try:
            token = token_of(self._token_file)
        except MldebugError:  # its path is nobody's business there
            return _error(503, "the agent's token cannot be read", "see agent.token_file")
        if hmac.compare_digest(shown.encode(errors="replace"), f"Bearer {token}".encode()):
            return None
        if not self._sessions.tries(address, right=False):
            refusal = _error(429, "too many wrong tokens", "wait a minute, then try again")
            refusal.headers["Retry-After"] = "60"
            return refusal
        refusal = _error(
            401, "the token is not the agent's", "authorization: {credentials_file: …}"
        )
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal


async def _body(request: Request) -> bytes | None:
    """Return the request's body; None as soon as it is larger than MAX_BODY."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


def _error(status: int, error: str, way_out: str = "") -> Response:
    body = msgspec.json.encode(ErrorAnswer(error, way_out))
    return Response(body, status_code=status, media_type="application/json")
