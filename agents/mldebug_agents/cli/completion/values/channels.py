"""Channels of the config file that stands on the command line."""

from collections.abc import Iterator

from mldebug.config.schema import load_config
from mldebug.core.plugins import NoOptions
from mldebug_agents.cli.completion.request import CompletionRequest, Value
from mldebug_agents.cli.completion.values import ValueSource


class ChannelValues:
    """The names of the notification channels in the configuration; none where the file is invalid."""

    def values(self, request: CompletionRequest) -> Iterator[Value]:
        """The names of the channels, in the order of the config file."""
        for name, plugin in load_config(request.config).channels.items():
            yield Value(name, plugin.kind)


def create(options: NoOptions) -> ValueSource:
    """Build the source of completion values `channels`: channels of the config file that stands on the command line."""
    return ChannelValues()
