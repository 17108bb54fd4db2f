"""What may be completed at TAB: one file for each kind of value."""

from collections.abc import Iterator
from typing import Protocol

from mldebug_agents.cli.completion.request import CompletionRequest, Value


class ValueSource(Protocol):
    """Lists the values of one kind that may stand where the person is typing.

    It may be slow, because it runs in a child process.
    """

    def values(self, request: CompletionRequest) -> Iterator[Value]: ...
