"""What people ask a hub over HTTP: answers as JSON, at the hub's Unix socket by who they are, over TCP with the hub's token."""

from collections.abc import Callable, Mapping
from functools import partial

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.fleet.places import LEMONS
from mldebug_agents.web.control_requests import carry_out
from mldebug_agents.web.peer_credentials import may_see_all
from mldebug_agents.web.responses import Viewer, peer_at
from mldebug_agents.web.same_origin import SameOriginOnly
from mldebug_agents.web.token_auth import TokenAuth

JSON = "application/json"

Question = Callable[[int | None, Mapping[str, str]], object]
Who = Callable[[Request], Viewer | Response]


def questions(answerer: Answerer) -> dict[str, Question]:
    """What may be asked, by path: each takes the user (None: an operator) and the parameters, and returns a struct."""
    return {LEMONS: lambda uid, _: answerer.lemons(uid)}


def socket_app(asked: Mapping[str, Question], group: int | None) -> Starlette:
    """The app of the Unix socket: root, the hub's user and members of `group` are operators, others are users."""

    def who(request: Request) -> Viewer:
        peer = peer_at(request)
        if may_see_all(peer, group):
            return Viewer(None)
        return Viewer(peer.uid if peer is not None else -1)

    return Starlette(routes=_routes(asked, who), middleware=[Middleware(SameOriginOnly)])


def tcp_app(asked: Mapping[str, Question], tokens: TokenAuth) -> Starlette:
    """The app of the TCP port: a request with the token comes from an operator."""
    return Starlette(routes=[*_routes(asked, tokens.viewer), *tokens.routes()])


def _routes(asked: Mapping[str, Question], who: Who) -> list[Route]:
    answers = [Route(path, partial(_answer, question, who)) for path, question in asked.items()]
    return [*answers, Route("/healthz", lambda _: PlainTextResponse("ok\n"))]


async def _answer(question: Question, who: Who, request: Request) -> Response:
    return await run_in_threadpool(_answered, question, who, request)


def _answered(question: Question, who: Who, request: Request) -> Response:
    viewer = who(request)
    if isinstance(viewer, Response):
        return viewer
    uid = viewer.uid
    try:
        status, body = carry_out(lambda parameters: question(uid, parameters), request.query_params)
    except OSError as error:
        return PlainTextResponse(f"{error}\n", 503)
    return Response(body, status, media_type=JSON)
