"""Sends batches into the stream of NATS, from which a hub takes them."""

import asyncio
import hashlib
import ssl
from typing import Any

import msgspec

from mldebug.fleet.batches import BatchAnswer, batch_of
from mldebug_agents.cluster.peers.net.errors import RefusedError
from mldebug_agents.fleet.stream import (
    ANSWER_TO,
    BATCH_ID,
    STREAM,
    connected,
    in_words,
    subject_of,
)

STORED = 15.0  # seconds until NATS has a batch on its disk
ANSWER = 5.0  # more for the answer of a hub, of which none may live
WHOLE = 45.0  # seconds for all of it


class StreamClient:
    """Sends batches to NATS, each by a connection of its own: an agent has some an hour. `address`: for people."""

    def __init__(self, node: str, address: str, tls: ssl.SSLContext) -> None:
        self.address = address
        self._node, self._tls = node, tls
        self._servers = tuple(one.strip() for one in address.split(","))

    def deliver(self, body: bytes) -> BatchAnswer:
        """Send one batch; returns when NATS has it on its disk, with the answer of a hub where one comes in time, else as stored:
        a hub takes it later. Raises RefusedError where it has to be sent again.
        """
        try:
            return asyncio.run(asyncio.wait_for(self._deliver(body), WHOLE))
        except Exception as error:
            raise RefusedError(f"NATS has not taken it: {in_words(error)}") from error

    async def _deliver(self, body: bytes) -> BatchAnswer:
        async with connected(self._servers, self._tls, self._node) as link:
            inbox = link.new_inbox()
            answers = await link.subscribe(inbox, max_msgs=1)
            headers = {BATCH_ID: hashlib.sha256(body).hexdigest()[:32], ANSWER_TO: inbox}
            stream = link.jetstream()
            await stream.publish(subject_of(self._node), body, timeout=STORED, stream=STREAM, headers=headers)  # fmt: skip
            return await _answer(answers) or BatchAnswer(stored=len(batch_of(body).events))


async def _answer(answers: Any) -> BatchAnswer | None:
    """What a hub says; None where none says anything in time, or what no hub says."""
    try:
        came = await answers.next_msg(timeout=ANSWER)
        return msgspec.json.decode(came.data, type=BatchAnswer)
    except (TimeoutError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
