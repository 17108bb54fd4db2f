"""How an agent reaches the hub, and how a hub proves itself, by the sections `fleet`, `hub` and `cluster` of the configuration.

The hub's address comes from the configuration alone: no job can choose to whom an agent proves itself.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from mldebug.config.fleet import INGEST_PORT, NATS, FleetConfig, HubConfig, host_and_port
from mldebug.config.schema import Config
from mldebug.core.errors import ConfigError, MldebugError
from mldebug.fleet.batches import MAX_ANSWER, PATH, BatchAnswer
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.errors import RefusedError
from mldebug_agents.cluster.peers.net.identity import Identity, KeyPair, RenewedIdentity, identity
from mldebug_agents.fleet.key_files import KeyFiles

HOW = "fleet: {hub: https://HOST:9755, key_file: FILE}, see docs/fleet.md"
ANSWER = 30.0  # seconds for one batch


class Proof(NamedTuple):
    """With what a program proves that it belongs to the fleet: at first, and later where certificates are renewed."""

    now: Identity
    newest: Callable[[], Identity]


class HubClient(Protocol):
    """Sends batches to the hub; blocks, so a worker's thread calls it. `address`: of the hub, for people."""

    address: str

    def deliver(self, body: bytes) -> BatchAnswer:
        """Send one batch and return the hub's answer, after which nothing of it is to be sent again. Raises MldebugError where it has to be."""
        ...


class HttpsClient:
    """Sends batches by HTTPS."""

    def __init__(self, to: Peer, client: PeerClient) -> None:
        self.address = f"{to.host}:{to.port}"
        self._to, self._client = to, client

    def deliver(self, body: bytes) -> BatchAnswer:
        """Send one batch and return the hub's answer, after which nothing of it is to be sent again. Raises MldebugError where it has to be."""
        answer = self._client.ask(self._to, PATH, body, timeout=ANSWER, most=MAX_ANSWER)
        try:
            return msgspec.json.decode(answer, type=BatchAnswer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RefusedError("it does not answer as a hub does") from error


def hub_client(config: Config, node: str, make: Callable[[bytes], KeyPair]) -> HubClient | None:
    """The client of the hub; None where none is configured. Raises ConfigError without a key, UsageError for one that cannot be used.
    `node`: the name of this one; `make`: turns a shared key into certificate and private key.
    """
    if not config.fleet.hub:
        return None
    if config.fleet.hub.startswith(NATS):
        # with asyncio and nats-py, which an agent without NATS neither needs nor has
        from mldebug_agents.fleet.stream import tls_of
        from mldebug_agents.fleet.stream_client import StreamClient

        return StreamClient(node, config.fleet.hub, tls_of(keys_of(config.fleet, config)))
    found = proof(keys_of(config.fleet, config), make)
    host, port = host_and_port(config.fleet.hub, INGEST_PORT)
    return HttpsClient(Peer(host, port), PeerClient(found.now, newest=found.newest))


def keys_of(section: FleetConfig | HubConfig, config: Config) -> KeyFiles:
    """The files of keys that this section names, else those of the section `cluster`. Raises ConfigError where there are none."""
    for one in (section, config.cluster):
        files = KeyFiles(one.key_file, one.certificate, one.key, one.ca)
        if files.key_file is not None or all(files[1:]):
            return files
    raise ConfigError(["a hub needs a key_file, or a certificate with key and ca, here or in the section cluster"], HOW)  # fmt: skip


def proof(files: KeyFiles, make: Callable[[bytes], KeyPair]) -> Proof:
    """The proof by these files. Raises UsageError where they cannot be used."""
    if files.key_file is not None:
        shared = identity(files.key_file, make)
        return Proof(shared, lambda: shared)
    if files.certificate is None or files.key is None or files.ca is None:
        raise ConfigError(["certificate, key and ca go together"], HOW)
    renewed = RenewedIdentity(files.certificate, files.key, files.ca)
    return Proof(renewed.now, renewed)


def as_sentence(error: Exception) -> str:
    """The reason, in words, why events could not be sent to the hub; `error` is what the attempt to send them raised."""
    return error.message if isinstance(error, MldebugError) else f"{type(error).__name__}: {error}"
