"""Network interfaces of this node."""

import socket
from collections.abc import Iterator

import msgspec

from mldebug_agents.cli.completion.request import CompletionRequest, Value


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class InterfaceValues:
    """All of them, by number."""

    def values(self, asked: CompletionRequest) -> Iterator[Value]:
        """Their names."""
        yield from (Value(name) for _, name in socket.if_nameindex())


def create(options: Options) -> InterfaceValues:
    """Build it."""
    return InterfaceValues()
