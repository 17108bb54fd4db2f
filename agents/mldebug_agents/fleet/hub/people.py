"""What people ask a hub over HTTP: answers as JSON, at the hub's Unix socket by who they are, over TCP with the hub's token."""

import asyncio
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mldebug.core.errors import AccessError, UsageError
from mldebug.core.redact import clean
from mldebug.core.text import seconds_of
from mldebug.fleet.answers.incidents import IncidentQuery
from mldebug.fleet.events import LAST_TIME
from mldebug.web import frame
from mldebug_agents.fleet.hub.answerer import OPERATORS, Answerer
from mldebug_agents.fleet.hub.intake import Intake, Sender
from mldebug_agents.fleet.hub.metrics import TYPE, HubMetrics
from mldebug_agents.fleet.hub.notes import NewNote, NoteBook
from mldebug_agents.fleet.places import (
    HOURS,
    INCIDENTS,
    JOBS,
    LEMONS,
    NODE,
    NODES,
    NOTES,
    RETRY,
    SENDERS,
    SIMILAR,
)
from mldebug_agents.web.access.same_origin import (
    BY_NAME,
    SameOriginOnly,
    from_browser,
    refused_host,
)
from mldebug_agents.web.access.token_auth import TokenAuth
from mldebug_agents.web.control_requests import carry_out
from mldebug_agents.web.peer_credentials import may_see_all
from mldebug_agents.web.responses import Viewer, asset, peer_at

JSON = "application/json"
MAX_NOTE = 8192  # bytes
PATIENCE = 10.0  # seconds for all of it
MONTH = 30 * 86400.0  # seconds of GPU hours, where nothing else is asked
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
        NODES: lambda uid, _: answerer.nodes(uid),
        INCIDENTS: lambda uid, asks: answerer.incidents(uid, query_of(asks)),
        SIMILAR: lambda uid, asks: answerer.similar(uid, asks.get("incident", "")[:MAX_NAME]),
        HOURS: lambda uid, asks: answerer.hours(
            uid, asks.get("by", "user")[:MAX_NAME], _moment(asks, "since", time.time() - MONTH)
        ),
    }


def query_of(asks: Mapping[str, str]) -> IncidentQuery:
    """What is looked for, by the parameters of a request. Raises UsageError for a time that is none."""
    texts = {name: asks.get(name, "")[:MAX_NAME].strip() for name in ("words", "verdict", "node", "user", "job")}  # fmt: skip
    return IncidentQuery(since=_moment(asks, "since", 0.0), until=_moment(asks, "until", LAST_TIME), **texts)  # fmt: skip


def _moment(asks: Mapping[str, str], name: str, otherwise: float) -> float:
    """A parameter that is a time: unix seconds, or RFC 3339, or a date."""
    text = asks.get(name, "")[:MAX_NAME].strip()
    if not text:
        return otherwise
    found = float(text) if text.isdecimal() else seconds_of(text)
    if found is None:
        raise UsageError(f"{name}={clean(text, 40)} is no time", "write it like 2026-11-28 or 2026-11-28T03:14:15Z")  # fmt: skip
    return found


def _senders(uid: int | None, intake: Intake) -> tuple[Sender, ...]:
    """What each node has sent, and what was refused of it."""
    if uid is not None:
        raise AccessError("who sends what is for operators", OPERATORS)
    return intake.senders()


def socket_app(
    by_path: Mapping[str, Question],
    metrics: HubMetrics,
    pages: Mapping[str, Page],
    notes: NoteBook,
    group: int | None,
) -> Starlette:
    """The app of the Unix socket: root, the hub's user and members of `group` are operators, others are users."""

    def who(request: Request) -> Viewer:
        peer = peer_at(request)
        if may_see_all(peer, group):
            return Viewer(None)
        return Viewer(peer.uid if peer is not None else -1)

    def author(request: Request) -> str:
        peer = peer_at(request)
        return f"user {peer.uid}" if peer is not None else "somebody"

    routes = [*_routes(by_path, metrics, pages, who), *_notes(notes, who, author)]
    return Starlette(routes=routes, middleware=[Middleware(SameOriginOnly)])


def tcp_app(
    by_path: Mapping[str, Question],
    metrics: HubMetrics,
    pages: Mapping[str, Page],
    notes: NoteBook,
    tokens: TokenAuth,
) -> Starlette:
    """The app of the TCP port: a request with the token comes from an operator."""
    routes = _routes(by_path, metrics, pages, tokens.viewer, platform.node())
    added = _notes(notes, tokens.viewer, lambda _: "an operator")
    return Starlette(routes=[*routes, *added, *tokens.routes()])


def _routes(by_path: Mapping[str, Question], metrics: HubMetrics, pages: Mapping[str, Page], who: Who, node: str = "") -> list[Route]:  # fmt: skip
    """`node`: what this node is called, where a browser may come under any name; "" for the socket."""

    def scraped(request: Request) -> Response:
        if node and (why := refused_host(request.headers, node)):
            return PlainTextResponse(f"Not answered: {why}. {BY_NAME}\n", 421)
        return Response(metrics.text(), media_type=TYPE)

    answers = [Route(path, partial(_answer, question, who)) for path, question in by_path.items()]
    public = [
        Route("/metrics", scraped),
        Route("/healthz", lambda _: PlainTextResponse("ok\n")),
    ]
    styles = [
        Route("/look.css", lambda _: asset(frame.style(), "text/css")),
        Route("/look.js", lambda _: asset(frame.script(), "text/javascript")),
    ]
    shown = [Route(path, partial(_shown, page, who)) for path, page in pages.items()]
    return [*shown, *answers, *public, *styles]


def _notes(notes: NoteBook, who: Who, author: Callable[[Request], str]) -> list[Route]:
    """Where notes are added: by programs, and by no browser, which another site's page might use."""

    async def post(request: Request) -> Response:
        if from_browser(request.headers):
            return PlainTextResponse("a browser may only look\n", 403)
        stranger = await run_in_threadpool(who, request)
        if isinstance(stranger, Response):  # before anything of what is sent is read
            return stranger
        try:
            body = await asyncio.wait_for(_body(request), PATIENCE)
        except TimeoutError:
            return PlainTextResponse("it was not complete in time\n", 408)
        if body is None:
            return PlainTextResponse("a note has at most 600 characters\n", 413)
        return await run_in_threadpool(_noted, notes, who, author, request, body)

    return [Route(NOTES, post, methods=["POST"])]


async def _body(request: Request) -> bytes | None:
    """None where it is too large, of which nothing more is read."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_NOTE:
            return None
    return bytes(body)


def _noted(notes: NoteBook, who: Who, author: Callable[[Request], str], request: Request, body: bytes) -> Response:  # fmt: skip
    def add(uid: int | None, _: Mapping[str, str]) -> object:
        try:
            note = msgspec.json.decode(body, type=NewNote)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError("this is no note", 'send {"incident": ID, "text": WORDS}') from error
        return notes.add(uid, author(request), note)

    return _answered(add, who, request)


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
