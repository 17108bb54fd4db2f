"""Network interfaces of this node."""

import socket
from collections.abc import Iterator

import msgspec

from mldebug_agents.cli.completion.request import Asked, Value


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class Interfaces:
    """All of them, by number."""

    def values(self, asked: Asked) -> Iterator[Value]:
        """Their names."""
        yield from (Value(name) for _, name in socket.if_nameindex())


def create(options: Options) -> Interfaces:
    """Build it."""
    return Interfaces()
