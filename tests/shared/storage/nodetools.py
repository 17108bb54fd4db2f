"""The tools of a node for tests, with another configuration or other parts in their place."""

from dataclasses import replace

from mldebug.config.schema import Config
from mldebug_agents.system.context import Context


def with_config(context: Context, config: Config) -> Context:
    """The same context, under another configuration."""
    return replace(context, current_config=lambda: config)
