"""Channels of the config file that stands on the command line."""

from collections.abc import Iterator

import msgspec

from mldebug.config.schema import load_config
from mldebug_agents.cli.completion.request import CompletionRequest, Value


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class ChannelValues:
    """Their names; none from a file that is not good."""

    def values(self, asked: CompletionRequest) -> Iterator[Value]:
        """In their order."""
        for name, plugin in load_config(asked.config).channels.items():
            yield Value(name, plugin.kind)


def create(options: Options) -> ChannelValues:
    """Build it."""
    return ChannelValues()
