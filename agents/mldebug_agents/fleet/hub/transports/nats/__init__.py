"""NATS JetStream: agents publish into a stream on disk, and several hubs take from it."""

from importlib.util import find_spec

import msgspec

from mldebug.core.errors import ToolError
from mldebug.fleet.hub_model import HubTransport
from mldebug_agents.fleet.key_files import KeyFiles
from mldebug_agents.fleet.stream import LIBRARY, tls_of


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the transport: NATS servers, separated by commas, the hub's keys, and the name in its certificate."""

    servers: str = "127.0.0.1:4222"
    keys: KeyFiles = KeyFiles()
    name: str = "hub"


def create(options: Options) -> HubTransport:
    """Build the transport that takes from NATS. It looks at its keys when it starts. Raises ToolError where nats-py is not installed."""
    if find_spec("nats") is None:
        raise ToolError("a hub needs the package nats-py to take from NATS", LIBRARY)
    from mldebug_agents.fleet.hub.transports.nats.consumer import StreamTransport

    servers = tuple(one.strip() for one in options.servers.split(","))
    return StreamTransport(servers, lambda: tls_of(options.keys), options.name)
