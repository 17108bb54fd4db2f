"""Measure an idle node: collectives, GPUs, links."""

from typing import Any

import click

from mldebug.core.plugins import NoOptions, names, summary
from mldebug.core.plugins import create as create_plugin
from mldebug_agents.cluster.fanout.abandonment import ended_by_signals


class ProbeGroup(click.Group):
    """A group whose commands are the plugins of kind `probes`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all probes; none of them is imported."""
        return names("probes")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one probe's file and build its command; None for an unknown name."""
        if cmd_name not in names("probes"):
            return None
        command: click.Command = create_plugin("probes", cmd_name)
        command.name, command.short_help = cmd_name, summary("probes", cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a probe. SIGTERM and a closed terminal end it as Ctrl-C does: results measured by then are printed."""
        with ended_by_signals():
            return super().invoke(ctx)


@click.group("probe", cls=ProbeGroup, context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Measure an idle node: collectives, GPUs, links.

    Nothing is measured while anybody computes on the GPUs or a training job runs here, and a probe ends at once
    when one appears. Exit code 1: the node is busy, or something was found.
    """


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug probe`: measure an idle node: collectives, GPUs, links."""
    return group
