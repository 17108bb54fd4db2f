"""The options of a command that looks at other nodes, by themselves: who only asks this node's agent imports nothing of what asks others."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mldebug.cli.param_types import FILE

_Command = TypeVar("_Command", bound=Callable[..., Any])


def node_options(command: _Command) -> _Command:
    """The options of a command that looks at other nodes; `mldebug_agents.cluster.node_views.far_nodes` reads them."""
    for option in reversed(
        (
            click.option("--slurm-job", metavar="ID", help="On all nodes of this Slurm job, by srun."),
            click.option("--hosts", metavar="NODES", help="On these nodes: node[1-40], or a hostfile; by ssh."),
            click.option("--there", type=FILE, default="", help="The Python with mldebug on other nodes; default: this one's path."),
            click.option("--wait", metavar="DURATION", help="How long a node has to answer, 30s by default."),
            click.option("--send", is_flag=True, hidden=True),  # what the nodes are asked for
        )
    ):  # fmt: skip
        command = option(command)
    return command
