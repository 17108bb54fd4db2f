"""Takes batches from the stream, and acknowledges each when it is stored. What a hub that dies has not acknowledged, another one gets."""

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from mldebug.core.errors import EvidenceError
from mldebug.fleet.batches import BatchAnswer, RefusedEvent, batch_of
from mldebug.fleet.hub_model import BatchRefusedError, ReceivedBatch, Take
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.fleet.hub.transports.nats.setup import consumer_of
from mldebug_agents.fleet.stream import ANSWER_TO, connected, in_words, inbox_of, sender_of

log = logging.getLogger("mldebug")

AT_ONCE = 64  # batches that are taken together
WAIT = 1.0  # seconds for the next batch
AGAIN = 1.0  # seconds until the next try to connect
LATER, STORM = (
    5.0,
    60.0,
)  # seconds after which a batch comes again: the store has failed, its node sends too much
COUNT_EVERY = 10.0  # seconds


class StreamTransport:
    """Takes batches in a thread of its own, and connects again for ever."""

    def __init__(self, servers: tuple[str, ...], tls: Callable[[], ssl.SSLContext], name: str) -> None:  # fmt: skip
        """`tls` raises UsageError where a key cannot be used; `name`: of this hub, as its certificate and NATS know it."""
        self._servers, self._tls, self._name = servers, tls, name
        self._refusals = Refusals()
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(AT_ONCE, "mldebug-hub-take")
        self._thread: threading.Thread | None = None
        self._waiting: int | None = None
        self._trouble = ""

    def start(self, take: Take) -> None:
        """Begin. A NATS server that does not answer yet is waited for. Raises UsageError where a key cannot be used."""
        tls = self._tls()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(take, tls)), name="mldebug-hub-nats", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Store what was fetched, and take no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(30.0)
        self._pool.shutdown(wait=False)

    def refused(self) -> dict[str, int]:
        """How many were refused, by reason."""
        return self._refusals.counts

    def waiting(self) -> int | None:
        """Batches in the stream that no hub has stored yet; None while NATS does not answer."""
        return self._waiting

    async def _serve(self, take: Take, tls: ssl.SSLContext) -> None:
        while not self._stopping.is_set():
            try:
                async with connected(self._servers, tls, self._name) as link:
                    await self._consume(link, take)
            except Exception as error:  # noqa: BLE001 - whatever a server that goes or comes brings about
                self._waiting = None
                if (why := in_words(error)) != self._trouble:
                    log.error("NATS gives no batches: %s", why)
                self._trouble = why
                await asyncio.sleep(AGAIN)

    async def _consume(self, link: Any, take: Take) -> None:
        batches = await consumer_of(link)
        if self._trouble:
            log.info("NATS gives batches again")
        self._trouble, counted = "", -COUNT_EVERY
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            if clock() - counted >= COUNT_EVERY:
                found, counted = await batches.consumer_info(), clock()
                self._waiting = found.num_pending + found.num_ack_pending
            try:
                came = await batches.fetch(AT_ONCE, timeout=WAIT)
            except TimeoutError:
                if link.is_closed:
                    raise ConnectionError("it has hung up") from None
                continue
            await asyncio.gather(*(self._handle(link, one, take) for one in came))
            await link.flush()

    async def _handle(self, link: Any, message: Any, take: Take) -> None:
        """Store one batch, and say so to NATS and to its sender."""
        node = sender_of(message.subject)
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._pool, _taken, take, message.data, node)
        except OSError:
            await message.nak(delay=LATER)
            return
        except BatchRefusedError as error:
            if error.reason == "storm":
                await message.nak(delay=STORM)
                return
            answer = _refused(error.reason, str(error))
        except EvidenceError as error:
            self._refusals.count("malformed", node, error.message)
            answer = _refused("malformed", error.message)
        await message.ack()
        inbox = (message.headers or {}).get(ANSWER_TO, "")
        if _is_inbox(inbox, node):
            await link.publish(inbox, msgspec.json.encode(answer))


def _taken(take: Take, body: bytes, node: str) -> BatchAnswer:
    return take(ReceivedBatch(batch_of(body), node, node))


def _refused(reason: str, why: str) -> BatchAnswer:
    return BatchAnswer(refused=1, troubles=(RefusedEvent(0, reason, why),))


def _is_inbox(subject: str, node: str) -> bool:
    """Whether an answer may go there. A node names where, and the hub may publish where that node may not."""
    begin = f"{inbox_of(node)}."
    rest = subject.removeprefix(begin)
    return subject.startswith(begin) and rest.isalnum() and rest.isascii()
