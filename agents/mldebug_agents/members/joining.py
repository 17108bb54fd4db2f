"""From the `cluster` section to the parts that it asks for, with every problem in words."""

import ipaddress
import socket
from collections.abc import Callable
from typing import NamedTuple

from mldebug.config import Cluster
from mldebug.errors import ConfigError, UsageError
from mldebug.folding import unfold_nodes
from mldebug_agents.members.identity import MAKE_ONE, Identity, Pair, identity
from mldebug_agents.members.talk import Network, Peer, Talk, peer
from mldebug_agents.serving.doors import open_tcp


class Joined(NamedTuple):
    """What an agent needs to talk to others."""

    door: socket.socket
    identity: Identity
    talk: Talk
    candidates: tuple[Peer, ...]
    port: int
    interval: float


def join(settings: Cluster, make: Callable[[bytes], Pair]) -> Joined | None:
    """Listen and read the key; None where no other agents are configured. ConfigError, UsageError where it cannot be."""
    if settings.key_file is None and not settings.peers:
        return None
    if settings.key_file is None:
        raise ConfigError(["cluster.peers needs cluster.key_file"], MAKE_ONE)
    if not settings.peers:
        raise ConfigError(
            ["cluster.key_file needs cluster.peers"], "cluster: {peers: [node1, node2]}"
        )
    networks = [_network(one) for one in settings.networks]
    proof = identity(settings.key_file, make)
    door = open_tcp(settings.listen)
    port = door.getsockname()[1]
    return Joined(
        door=door,
        identity=proof,
        talk=Talk(proof.client, networks),
        candidates=tuple(one for text in settings.peers for one in _peers(text, port)),
        port=port,
        interval=settings.interval,
    )


def _peers(text: str, port: int) -> tuple[Peer, ...]:
    if text.startswith("[") or text.count(":") > 1:
        return (peer(text, port),)
    hosts, colon, told = text.partition(":")
    return tuple(peer(f"{host}{colon}{told}", port) for host in unfold_nodes(hosts))


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise UsageError(f"cluster.networks: {error}", "write it like 10.1.0.0/16") from error
