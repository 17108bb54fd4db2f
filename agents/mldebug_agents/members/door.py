"""What other agents may ask of this one. Who is here has shown the certificate of the shared key: nobody else gets so far."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mldebug.across.members import (
    MAX_MESSAGE,
    Announcement,
    CaptureOrder,
    DumpOrder,
    believed,
    check_incident,
    read,
)
from mldebug.across.slimming import slim
from mldebug.across.wire import NodeReply, pack
from mldebug.errors import EvidenceError, MldebugError
from mldebug.model import NodeCapture
from mldebug.redact import clean
from mldebug_agents.members.asking import CAPTURE, DEADLINE, Together
from mldebug_agents.members.seeking import ANNOUNCE, ANSWER

VIEW = "/peer/v1/cluster"
DUMP = "/peer/v1/dump"
DUMP_DEADLINE = 60.0
WRITTEN = 2.0  # seconds that an answer waits for the disk
Ask = Callable[[Announcement | CaptureOrder | DumpOrder | None, str], "Future[Any]"]
Judge = Callable[[Together], bytes]


def app(ask: Ask, node: str, judge: Judge, waiting: Callable[[], int] = lambda: 0) -> Starlette:
    """`ask` puts a question to the main loop; `judge` makes a report of what came for a person.

    `waiting`: how many reports are not on this node's disk yet.
    """

    async def announced(body: bytes, address: str) -> bytes:
        told = believed(read(body, Announcement))
        return msgspec.json.encode(await _answer(ask(told, address), ANSWER))

    async def ordered(body: bytes, address: str) -> bytes:
        order = read(body, CaptureOrder)
        check_incident(order.incident)
        order = msgspec.structs.replace(order, sentence=clean(order.sentence, 600))
        capture: NodeCapture | None = await _answer(ask(order, address), DEADLINE)
        await _written(waiting)
        return await run_in_threadpool(_packed, capture, node)

    async def viewed(body: bytes, address: str) -> bytes:
        return msgspec.json.encode(await _answer(ask(None, address), ANSWER))

    async def dumped(body: bytes, address: str) -> bytes:
        together = await _answer(ask(read(body, DumpOrder), address), DUMP_DEADLINE)
        return await run_in_threadpool(judge, together)

    routes = {ANNOUNCE: announced, CAPTURE: ordered, VIEW: viewed, DUMP: dumped}
    return Starlette(
        routes=[Route(path, _bounded(do), methods=["POST"]) for path, do in routes.items()]
    )


def _packed(capture: NodeCapture | None, node: str) -> bytes:
    return pack(slim(NodeReply(node=node, captures=(capture,) if capture else ())))


async def _written(waiting: Callable[[], int]) -> None:
    """What this node has seen lies on its own disk before anybody else gets it, unless the disk keeps it waiting."""
    until = time.monotonic() + WRITTEN
    while waiting() and time.monotonic() < until:
        await asyncio.sleep(0.02)


async def _answer(asked: "Future[Any]", seconds: float) -> Any:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(asked), seconds)
    except TimeoutError:
        raise MldebugError(f"not done in {seconds:g} s") from None


def _bounded(
    do: Callable[[bytes, str], Awaitable[bytes]],
) -> Callable[[Request], Awaitable[Response]]:
    """Bodies have an end, errors are told in words."""

    async def handle(request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_MESSAGE:
                return Response(f"more than {MAX_MESSAGE >> 10} KiB", status_code=413)
        address = request.client.host if request.client else ""
        try:
            return Response(await do(bytes(body), address), media_type="application/octet-stream")
        except EvidenceError as error:
            return Response(error.message, status_code=400)
        except MldebugError as error:
            return Response(error.message, status_code=409)

    return handle
