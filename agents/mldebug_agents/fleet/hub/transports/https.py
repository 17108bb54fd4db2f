"""Agents send batches by HTTPS, and prove themselves as they do to each other."""

import asyncio
import ipaddress
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mldebug.core.errors import EvidenceError, UsageError
from mldebug.fleet.batches import MAX_BATCH, PATH, BatchAnswer, FleetBatch, batch_of
from mldebug.fleet.hub_model import BatchRefusedError, HubTransport, ReceivedBatch, Take
from mldebug_agents.cluster.peers.net.certificates import Certificate, CertificateError
from mldebug_agents.cluster.peers.net.client import Network, PeerClient, plain_ip
from mldebug_agents.cluster.peers.net.identity import count_failures, derive
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.setup import more_descriptors
from mldebug_agents.fleet.key_files import KeyFiles
from mldebug_agents.fleet.setup import Proof, proof
from mldebug_agents.web.listeners import open_tcp
from mldebug_agents.web.server import HttpServers

BODY = 20.0  # seconds in which a batch has to be complete
DRAIN_LIMIT = 4 * MAX_BATCH  # bytes of a batch that is too large, and yet read to its end
HANG_UP = {"connection": "close"}  # what is left of the batch is not read
JSON, WORDS = "application/json", "text/plain"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the transport: where it listens, its keys, and where agents may be."""

    listen: str = "127.0.0.1:0"
    keys: KeyFiles = KeyFiles()
    networks: tuple[str, ...] = ()


class HttpsTransport:
    """Listens for batches of agents. `port`: where, once it has started."""

    port = 0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._refusals = Refusals()
        self._servers = HttpServers()

    def start(self, take: Take) -> None:
        """Serve. A client that shows no certificate of the fleet fails in the handshake."""
        keys = proof(self._options.keys, derive)
        client = PeerClient(keys.now, tuple(map(_network, self._options.networks)))
        listener = open_tcp(self._options.listen)
        self.port = int(listener.getsockname()[1])
        more_descriptors()
        count_failures(keys.now, lambda reason, why: self._refusals.count(reason, "", why))
        slow = partial(self._refusals.count, "slow", why="it takes too long to say what it wants")
        app = Starlette(routes=[Route(PATH, partial(self._post, take, keys), methods=["POST"])])
        admits = partial(self._admits, client)
        self._servers.serve_peers(app, listener, keys.now.server, admits, slow)

    def stop(self) -> None:
        """Close all connections; what was not answered is sent again later."""
        self._servers.stop(2.0)

    def refused(self) -> dict[str, int]:
        """How many were refused, by reason."""
        return self._refusals.counts

    def waiting(self) -> int | None:
        """0: an agent keeps what is not stored."""
        return 0

    def _admits(self, client: PeerClient, address: str) -> bool:
        if client.allows(address):
            return True
        self._refusals.count("network", address, "it is in no network of hub.networks")
        return False

    async def _post(self, take: Take, keys: Proof, request: Request) -> Response:
        """Answer one batch. 200: it is stored; 400: no batch; 403: of another node; 408, 413: late, or too large; 429: too many; 503: try later."""
        address = str(plain_ip(request.client.host)) if request.client else ""
        try:
            async with asyncio.timeout(BODY):
                body = await _body(request)
        except TimeoutError:
            return self._refusal(408, "slow", address, f"not complete in {BODY:g} s")
        except ClientDisconnect:
            return Response(status_code=400)  # which nobody reads
        if body is None:
            return self._refusal(413, "size", address, f"more than {MAX_BATCH >> 10} KiB")
        certificate: Certificate = getattr(request.state, "certificate", {})
        try:
            answer = await run_in_threadpool(_taken, take, keys, body, certificate, address)
        except EvidenceError as error:
            return self._refusal(400, "malformed", address, error.message)
        except CertificateError as error:
            return self._refusal(403, "name", address, str(error))
        except BatchRefusedError as error:
            status = 429 if error.reason == "storm" else 403
            return Response(str(error), status, media_type=WORDS)
        except OSError as error:
            return Response(str(error), 503, media_type=WORDS)
        return Response(msgspec.json.encode(answer), media_type=JSON)

    def _refusal(self, status: int, reason: str, address: str, why: str) -> Response:
        self._refusals.count(reason, address, why)
        return Response(why, status, HANG_UP, WORDS)


def _taken(
    take: Take, keys: Proof, body: bytes, certificate: Certificate, address: str
) -> BatchAnswer:
    batch = batch_of(body)
    return take(ReceivedBatch(batch, _sender(keys, batch, certificate), address))


def _sender(keys: Proof, batch: FleetBatch, certificate: Certificate) -> str:
    """The node that sends, where each has a certificate of its own. Raises CertificateError where the batch says another one."""
    newest = keys.newest()
    if not newest.named:
        return ""
    try:
        newest.check(certificate, batch.node)
    except CertificateError as error:
        raise CertificateError(f"it calls itself {batch.node}, and {error}") from error
    return batch.node


async def _body(request: Request) -> bytes | None:
    """What was sent; None where it is too large. Up to `DRAIN_LIMIT` of that is read and dropped: who sends on hears the answer only at
    the end, and would take a connection that is closed before it for a refused certificate.
    """
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > DRAIN_LIMIT:
        return None
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > DRAIN_LIMIT:
            return None
        if size <= MAX_BATCH:
            body += chunk
    return bytes(body) if size <= MAX_BATCH else None


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise UsageError(f"hub.networks: {error}", "write it like 10.1.0.0/16") from error


def create(options: Options) -> HubTransport:
    """Build the transport that listens for HTTPS."""
    return HttpsTransport(options)
