"""What an agent needs to talk to other nodes' agents, by the `cluster` section of the configuration: listening socket,
identity, client, addresses of peers. Settings that do not fit together are reported all at once, a value that cannot
be read as the first one found.
"""

import ipaddress
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from mldebug.cluster.merge import placed
from mldebug.config.schema import ClusterConfig
from mldebug.core.errors import ConfigError, UsageError
from mldebug.core.model import QueriedNodes
from mldebug.core.ranksets import unfold_nodes
from mldebug_agents.cluster.peers.net.client import Network, Peer, PeerClient, peer
from mldebug_agents.cluster.peers.net.identity import Identity, KeyPair, RenewedIdentity, identity
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.web.listeners import open_tcp

HOW = "cluster: {key_file: FILE, networks: [10.1.0.0/16]}, see docs/across-nodes.md"


class PeerSetup(NamedTuple):
    """What an agent needs to work with others: listening socket, identity, client, candidates for the coordinator, and the counts
    of those that were refused.
    """

    listener: socket.socket
    identity: Identity
    client: PeerClient
    candidates: tuple[Peer, ...]
    port: int
    interval: float
    refusals: Refusals


def join(settings: ClusterConfig, make: Callable[[bytes], KeyPair]) -> PeerSetup | None:
    """Listen for other agents and read the key or certificates; None where neither is configured. Raises ConfigError or
    UsageError.
    """
    if problems := list(_problems(settings)):
        raise ConfigError(problems, HOW)
    if settings.key_file is None and settings.certificate is None:
        return None
    networks = [_network(network) for network in settings.networks]
    placed(QueriedNodes(), settings.topology)  # who writes a list that cannot be read hears it now
    for text in settings.peers:
        _peers(text, 1)  # before anything is opened
    newest = _newest(settings, make)
    proof = newest()
    listener = open_tcp(settings.listen)
    more_descriptors()
    port, refusals = listener.getsockname()[1], Refusals()
    return PeerSetup(
        listener=listener,
        identity=proof,
        client=PeerClient(proof, networks, newest, refusals.count),
        candidates=tuple(one for text in settings.peers for one in _peers(text, port)),
        port=port,
        interval=settings.interval,
        refusals=refusals,
    )


def more_descriptors() -> None:
    """Raise the limit of open files to the maximum: a coordinator has a connection to each node at the same time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # then those that there are must do
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _problems(settings: ClusterConfig) -> Iterator[str]:
    shared = settings.key_file is not None
    own = (settings.certificate, settings.key, settings.ca)
    if any(own) and not all(own):
        yield "cluster.certificate, cluster.key and cluster.ca go together"
    if shared and any(own):
        yield "use cluster.key_file or cluster.certificate, not both"
    if settings.peers and not shared and not any(own):
        yield "cluster.peers needs cluster.key_file, or cluster.certificate"
    if (shared or any(own)) and not settings.peers and not settings.networks:
        # whoever starts a job chooses who is asked: the site says where that may be
        yield "cluster needs peers, or networks in which the nodes of jobs are"


def _newest(settings: ClusterConfig, make: Callable[[bytes], KeyPair]) -> Callable[[], Identity]:
    """What gives the proof, which is renewed where it is a certificate of this node's own."""
    if settings.key_file is not None:
        shared = identity(settings.key_file, make)
        return lambda: shared
    if settings.certificate is None or settings.key is None or settings.ca is None:
        raise ConfigError(["cluster.certificate, cluster.key and cluster.ca go together"], HOW)
    return RenewedIdentity(settings.certificate, settings.key, settings.ca)


def _peers(text: str, port: int) -> tuple[Peer, ...]:
    if text.startswith("[") or text.count(":") > 1:
        return (_possible(peer(text, port), text),)
    hosts, colon, port_text = text.partition(":")
    found = (peer(f"{host}{colon}{port_text}", port) for host in unfold_nodes(hosts))
    return tuple(_possible(one, text) for one in found)


def _possible(one: Peer, text: str) -> Peer:
    """The system would take a port that cannot be for another one."""
    if not 0 < one.port < 65_536:
        wrong = f"cluster.peers: {text!r}: {one.port} is no port"
        raise ConfigError([wrong], "write a number from 1 to 65535, or none")
    return one


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise UsageError(f"cluster.networks: {error}", "write it like 10.1.0.0/16") from error
