"""The HTTP routes for requests of other agents. Every client has shown a valid certificate of the cluster in the handshake."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mldebug.cluster.inspection import InspectOrder, NodeInspectOrder
from mldebug.cluster.messages import (
    DUMP_DEADLINE,
    MAX_MESSAGE,
    Announcement,
    CaptureOrder,
    DumpOrder,
    believed,
    check_incident,
    read,
)
from mldebug.cluster.slimming import slim
from mldebug.cluster.source_shares import source_of
from mldebug.cluster.wire import NodeReply, pack
from mldebug.core.errors import EvidenceError, FailedCheckError, MldebugError
from mldebug.core.model import Gap
from mldebug.core.redact import clean
from mldebug_agents.cluster.peers.coordinated_capture import DEADLINE, ClusterCapture
from mldebug_agents.cluster.peers.coordinator_search import ANSWER
from mldebug_agents.cluster.peers.inspections import Inspections
from mldebug_agents.cluster.peers.net.certificates import Certificate, CertificateError
from mldebug_agents.cluster.peers.net.client import plain_ip
from mldebug_agents.cluster.peers.net.identity import Identity
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.net.work_budget import WorkBudget
from mldebug_agents.cluster.peers.openapi import (
    ANNOUNCE,
    CAPTURE,
    DUMP,
    INSPECT,
    INSPECT_NODE,
    OPENAPI,
    VIEW,
    document,
)
from mldebug_agents.cluster.peers.remote_orders import TimedCapture
from mldebug_agents.web.access.request_watch import watched

BODY = 20.0  # seconds in which a question has to be complete
HANG_UP = {"connection": "close"}  # what is left of the question is not read
JSON, PACKED, WORDS = "application/json", "application/octet-stream", "text/plain"
KINDS = {
    ANNOUNCE: JSON,
    VIEW: JSON,
    CAPTURE: PACKED,
    DUMP: PACKED,
    INSPECT: JSON,
    INSPECT_NODE: JSON,
}
QUICK = 32_768  # bytes of an announcement that is read at once, in a few milliseconds
WRITTEN = 2.0  # seconds that an answer waits for the disk
TOO_MUCH = "what it sends has cost more time than one node has: ask again in some seconds"
Order = Announcement | CaptureOrder | DumpOrder | InspectOrder | NodeInspectOrder
Ask = Callable[[Order | None, str], "Future[Any]"]
Judge = Callable[[ClusterCapture], bytes]


class RequestingPeer(NamedTuple):
    """The sender of a request: its address, and its checked certificate. `request`: by whose connection it can be seen whether the sender has gone."""

    address: str
    certificate: Certificate
    request: Request


Handler = Callable[[bytes, RequestingPeer], Awaitable[bytes]]


def app(
    ask: Ask,
    node: str,
    judge: Judge,
    waiting: Callable[[], int] = lambda: 0,
    proof: Identity | None = None,
    refusals: Refusals | None = None,
    machine: str = "",
    gaps: Callable[[], tuple[Gap, ...]] = lambda: (),
    work: WorkBudget | None = None,
    inspections: Inspections | None = None,
) -> Starlette:
    """The ASGI app. `ask` puts a request to the main loop; `judge` makes a report of the captures that a user asked for.

    `waiting`: the number of reports not yet on this node's disk. `machine`: as in `NodeReply`. `gaps`: what this node could not
    see at its last look, so that hidden ranks do not count as absent. `work`: what each address may cost. `inspections`: carries out requests to inspect ranks.
    """
    refused = refusals or Refusals()
    costs = Costs(work or WorkBudget())

    async def announced(body: bytes, who: RequestingPeer) -> bytes:
        announcement = await costs.read(body, who.address)
        try:
            if proof is not None:
                proof.check(who.certificate, announcement.node)
        except CertificateError as error:
            why = f"it calls itself {announcement.node}, and {error}"
            refused.count("name", who.address, why)
            raise MldebugError(why) from error
        if proof is not None and proof.named:
            announcement = msgspec.structs.replace(
                announcement, relayed=()
            )  # each speaks for itself alone
        return msgspec.json.encode(await _answer(ask(announcement, who.address), ANSWER))

    async def ordered(body: bytes, who: RequestingPeer) -> bytes:
        order = read(body, CaptureOrder)
        check_incident(order.incident)
        order = msgspec.structs.replace(order, sentence=clean(order.sentence, 600))
        taken: TimedCapture | None = await _answer(ask(order, who.address), DEADLINE)
        await _written(waiting)
        return await run_in_threadpool(_packed, taken, node, machine, gaps())

    async def viewed(body: bytes, who: RequestingPeer) -> bytes:
        return msgspec.json.encode(await _answer(ask(None, who.address), ANSWER))

    async def dumped(body: bytes, who: RequestingPeer) -> bytes:
        order = read(body, DumpOrder)
        together = await _answer(ask(order, who.address), DUMP_DEADLINE)
        return await run_in_threadpool(judge, together._replace(trigger=order.trigger))

    routes: dict[str, Handler] = {ANNOUNCE: announced, CAPTURE: ordered, VIEW: viewed, DUMP: dumped}
    routes |= _inspecting(ask, inspections) if inspections is not None else {}
    posts = [
        Route(path, _bounded(do, refused, KINDS[path], costs), methods=["POST"])
        for path, do in routes.items()
    ]
    return Starlette(routes=[*posts, Route(OPENAPI, _document)])


def _inspecting(ask: Ask, inspections: Inspections) -> dict[str, Handler]:
    """What answers requests to inspect ranks: the main loop says what is to be done, and a thread does it."""

    async def inspected(body: bytes, who: RequestingPeer) -> bytes:
        planned = await _answer(ask(read(body, InspectOrder), who.address), ANSWER)
        async with watched(who.request.receive) as gone:
            return await run_in_threadpool(inspections.everywhere, planned, gone)

    async def inspected_here(body: bytes, who: RequestingPeer) -> bytes:
        part = await _answer(ask(read(body, NodeInspectOrder), who.address), ANSWER)
        async with watched(who.request.receive) as gone:
            return await run_in_threadpool(inspections.here, part, gone)

    return {INSPECT: inspected, INSPECT_NODE: inspected_here}


def _announcement(body: bytes) -> Announcement:
    return believed(read(body, Announcement))


class Costs:
    """Limits the CPU time that decoding the messages of each address may take, before the main loop gets them. For the thread of the
    event loop only."""

    def __init__(self, work: WorkBudget) -> None:
        self._work = work
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def allows(self, address: str) -> bool:
        """Whether a message of this address may be looked at."""
        return self._work.allows(source_of(address), time.monotonic())

    async def read(self, body: bytes, address: str) -> Announcement:
        """Decode an announcement: a large one in another thread, one of each source at a time, so that the listener stays open for
        others. Raises EvidenceError, and MldebugError where its source has used up its time.
        """
        if len(body) <= QUICK:
            return self._read(body, address)
        async with self._turns.setdefault(source_of(address), asyncio.Lock()):
            if not self.allows(address):
                raise MldebugError(TOO_MUCH)
            return await run_in_threadpool(self._read, body, address)

    def _read(self, body: bytes, address: str) -> Announcement:
        before = time.thread_time()
        try:
            return _announcement(body)
        finally:
            self._work.spend(source_of(address), time.thread_time() - before, time.monotonic())


def _document(request: Request) -> Response:
    return Response(document(), media_type=JSON)


def _packed(
    taken: TimedCapture | None, node: str, machine: str, gaps: tuple[Gap, ...] = ()
) -> bytes:
    return pack(
        slim(
            NodeReply(
                node=node,
                machine=machine,
                captures=(taken.capture,) if taken else (),
                gaps=gaps,
                hidden=any(gap.way_out for gap in gaps),
                uid=os.geteuid(),
                age=taken.age(time.monotonic()) if taken else 0.0,
            )
        )
    )


async def _written(waiting: Callable[[], int]) -> None:
    """Wait until this node's own reports are on its disk before others get the capture, but not long for a slow disk."""
    until = time.monotonic() + WRITTEN
    while waiting() and time.monotonic() < until:
        await asyncio.sleep(0.02)


async def _answer(answer: "Future[Any]", seconds: float) -> Any:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(answer), seconds)
    except TimeoutError:
        raise MldebugError(f"not done in {seconds:g} s") from None


async def _body(request: Request) -> bytes | None:
    """What was sent; None where it is too large, of which nothing more is read."""
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > MAX_MESSAGE:
        return None
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_MESSAGE:
            return None
    return bytes(body)


def _bounded(
    do: Handler,
    refused: Refusals,
    kind: str,
    costs: Costs,
) -> Callable[[Request], Awaitable[Response]]:
    """A handler that bounds size and time of the body and answers errors in words."""

    async def handle(request: Request) -> Response:
        address = str(plain_ip(request.client.host)) if request.client else ""
        if not costs.allows(address):
            refused.count("storm", address, TOO_MUCH)
            return Response(TOO_MUCH, status_code=409, media_type=WORDS, headers=HANG_UP)
        try:
            async with asyncio.timeout(BODY):
                body = await _body(request)
        except TimeoutError:
            words = f"not complete in {BODY:g} s"
            refused.count("slow", address, f"what it sends is {words}")
            return Response(words, status_code=408, media_type=WORDS, headers=HANG_UP)
        except ClientDisconnect:
            refused.count("slow", address, "it has hung up before all of its question was there")
            return Response(status_code=400)  # which nobody reads
        if body is None:
            words = f"more than {MAX_MESSAGE >> 10} KiB"
            refused.count("size", address, f"it sends {words}")
            return Response(words, status_code=413, media_type=WORDS, headers=HANG_UP)
        who = RequestingPeer(address, getattr(request.state, "certificate", {}), request)
        try:
            return Response(await do(body, who), media_type=kind)
        except EvidenceError as error:
            refused.count("malformed", address, error.message)
            return Response(error.message, status_code=400, media_type=WORDS)
        except FailedCheckError as error:
            return Response(error.message, status_code=423, media_type=WORDS)
        except MldebugError as error:
            return Response(error.message, status_code=409, media_type=WORDS)

    return handle
