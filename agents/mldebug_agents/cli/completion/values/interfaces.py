"""Network interfaces of this node."""

import socket
from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug_agents.cli.completion.request import CompletionRequest, Value
from mldebug_agents.cli.completion.values import ValueSource


class InterfaceValues:
    """The network interfaces of this node, in the kernel's order."""

    def values(self, request: CompletionRequest) -> Iterator[Value]:
        """The names of the interfaces."""
        yield from (Value(name) for _, name in socket.if_nameindex())


def create(options: NoOptions) -> ValueSource:
    """Build the source of completion values `interfaces`: network interfaces of this node."""
    return InterfaceValues()
