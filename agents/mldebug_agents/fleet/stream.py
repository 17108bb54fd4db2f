"""The stream of batches in NATS JetStream: its subjects, and how agents and hubs connect.

Each node publishes to the subject of its own name and listens below an inbox of its own name; the NATS server lets it do nothing
else, by the certificate that it shows. So the subject proves the sender.
"""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from mldebug.core.errors import ToolError, UsageError
from mldebug_agents.fleet.key_files import KeyFiles

STREAM, SUBJECTS = "MLDEBUG_EVENTS", "mldebug.events"
ANSWER_TO = "Mldebug-Answer"  # header of a batch: the inbox for the hub's answer
BATCH_ID = "Nats-Msg-Id"  # header by which NATS knows a batch that is sent twice
CONNECT = 10.0  # seconds
LIBRARY = "pip install 'mldebug-agent[fleet]'"
HOW = "give fleet and hub a certificate, key and ca of their own, see docs/fleet.md"


def subject_of(node: str) -> str:
    """Where a node publishes its batches."""
    return f"{SUBJECTS}.{node}"


def sender_of(subject: str) -> str:
    """The node that a NATS subject belongs to: no other may publish there."""
    return subject.removeprefix(f"{SUBJECTS}.")


def inbox_of(node: str) -> str:
    """The NATS subject below which this node, and no other, receives the hub's answers."""
    return f"_INBOX.{node}"


def tls_of(keys: KeyFiles) -> ssl.SSLContext:
    """The context with which this program proves itself to a NATS server, and the server to it. Raises UsageError for files that cannot be
    used, and for a shared key: the server has to know who connects. ToolError where nats-py is not installed.
    """
    if find_spec("nats") is None:
        raise ToolError("NATS needs the package nats-py", LIBRARY)
    if keys.certificate is None or keys.key is None or keys.ca is None:
        raise UsageError("NATS needs a certificate for each node: with a shared key any agent could speak for any node", HOW)  # fmt: skip
    try:
        context = ssl.create_default_context(cafile=keys.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(keys.certificate, keys.key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{keys.certificate}, its key or {keys.ca} cannot be used: {error}", "all are PEM, the key without a password") from error  # fmt: skip
    return context


@asynccontextmanager
async def connected(addresses: tuple[str, ...], tls: ssl.SSLContext, name: str) -> AsyncIterator[Any]:  # fmt: skip
    """A connection of nats-py that is made once and never again. Raises OSError, asyncio.TimeoutError or an error of nats-py."""
    import nats

    logging.getLogger("asyncio").addFilter(_is_news)
    failures: list[Exception] = []

    async def note(error: Exception) -> None:
        failures.append(error)

    try:
        link = await nats.connect(
            [one if "://" in one else f"nats://{one}" for one in addresses],
            tls=tls,
            name=f"mldebug {name}",
            inbox_prefix=inbox_of(name),
            allow_reconnect=False,
            connect_timeout=int(CONNECT),
            error_cb=note,
        )
    except Exception as error:
        raise failures[-1] if failures else error from error
    try:
        yield link
    finally:
        await link.close()


def _is_news(record: logging.LogRecord) -> bool:
    """False for what asyncio says of each connection of nats-py that ends. The same function is added as a filter once only."""
    return "eof_received()" not in str(record.msg)


def in_words(error: BaseException) -> str:
    """An error of nats-py or of a connection as words for a person."""
    words = getattr(error, "description", None) or str(error) or type(error).__name__
    return str(words).removeprefix("nats: ")
