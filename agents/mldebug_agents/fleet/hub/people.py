"""What people ask a hub over HTTP: answers as JSON, at the hub's Unix socket by who they are, over TCP with the hub's token."""

from collections.abc import Callable, Mapping
from functools import partial

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mldebug.core.errors import AccessError
from mldebug.web import frame
from mldebug_agents.fleet.hub.answerer import OPERATORS, Answerer
from mldebug_agents.fleet.hub.intake import Intake, Sender
from mldebug_agents.fleet.hub.metrics import TYPE, HubMetrics
from mldebug_agents.fleet.places import JOBS, LEMONS, NODE, RETRY, SENDERS
from mldebug_agents.web.access.same_origin import SameOriginOnly
from mldebug_agents.web.access.token_auth import TokenAuth
from mldebug_agents.web.control_requests import carry_out
from mldebug_agents.web.peer_credentials import may_see_all
from mldebug_agents.web.responses import Viewer, asset, peer_at

JSON = "application/json"
MAX_NAME = 200  # characters of a job or node that is asked for

Question = Callable[[int | None, Mapping[str, str]], object]
Who = Callable[[Request], Viewer | Response]
Page = Callable[[Viewer, Request], Response]


def questions(answerer: Answerer, intake: Intake) -> dict[str, Question]:
    """What may be asked, by path: each takes the user (None: an operator) and the parameters, and returns a struct."""
    return {
        LEMONS: lambda uid, _: answerer.lemons(uid),
        JOBS: lambda uid, asks: answerer.jobs(uid, asks.get("job", "")[:MAX_NAME]),
        NODE: lambda uid, asks: answerer.node(uid, asks.get("node", "")[:MAX_NAME]),
        RETRY: lambda uid, asks: answerer.retry(uid, asks.get("job", "")[:MAX_NAME]),
        SENDERS: lambda uid, _: _senders(uid, intake),
    }


def _senders(uid: int | None, intake: Intake) -> tuple[Sender, ...]:
    """What each node has sent, and what was refused of it."""
    if uid is not None:
        raise AccessError("who sends what is for operators", OPERATORS)
    return intake.senders()


def socket_app(
    by_path: Mapping[str, Question], metrics: HubMetrics, page: Page, group: int | None
) -> Starlette:
    """The app of the Unix socket: root, the hub's user and members of `group` are operators, others are users."""

    def who(request: Request) -> Viewer:
        peer = peer_at(request)
        if may_see_all(peer, group):
            return Viewer(None)
        return Viewer(peer.uid if peer is not None else -1)

    home = Route("/", partial(_shown, page, who))
    return Starlette(
        routes=[home, *_routes(by_path, metrics, who)], middleware=[Middleware(SameOriginOnly)]
    )


def tcp_app(
    by_path: Mapping[str, Question], metrics: HubMetrics, page: Page, tokens: TokenAuth
) -> Starlette:
    """The app of the TCP port: a request with the token comes from an operator."""
    home = Route("/", partial(_shown, page, tokens.viewer))
    return Starlette(routes=[home, *_routes(by_path, metrics, tokens.viewer), *tokens.routes()])


def _routes(by_path: Mapping[str, Question], metrics: HubMetrics, who: Who) -> list[Route]:
    answers = [Route(path, partial(_answer, question, who)) for path, question in by_path.items()]
    public = [
        Route("/metrics", lambda _: Response(metrics.text(), media_type=TYPE)),
        Route("/healthz", lambda _: PlainTextResponse("ok\n")),
    ]
    styles = [
        Route("/look.css", lambda _: asset(frame.style(), "text/css")),
        Route("/look.js", lambda _: asset(frame.script(), "text/javascript")),
    ]
    return [*answers, *public, *styles]


async def _shown(page: Page, who: Who, request: Request) -> Response:
    viewer = await run_in_threadpool(who, request)
    if isinstance(viewer, Response):
        return viewer
    return await run_in_threadpool(page, viewer, request)


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
