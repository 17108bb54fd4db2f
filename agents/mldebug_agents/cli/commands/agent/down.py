"""End the agent that `mldebug up` has started."""

from pathlib import Path

import click

from mldebug.config.schema import load_config
from mldebug.core.errors import MldebugError, NothingFoundError
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.text import typed
from mldebug_agents.system.service.background import LOG_FILE, running, stop
from mldebug_agents.web.client import ask_nearest

STOP_SECONDS = 30.0  # what an agent takes at most to write its last words, and more


@click.command("down")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(config: Path | None) -> None:
    """End the agent that `mldebug up` has started.

    No other process is ever ended: neither the node's service, nor an agent that was started in another way. Reports stay.
    """
    state_dir = load_config(config).agent.state_dir
    agent = running(state_dir)
    if agent is None:
        raise _nothing(state_dir, config)
    with progress_line("waiting for the agent to end"):
        ended = stop(agent, STOP_SECONDS)
    if not ended:
        raise MldebugError(
            f"the agent (pid {agent.pid}) has not ended in {STOP_SECONDS:g} s",
            f"see {state_dir / LOG_FILE}",
        )
    click.echo(
        f"The agent (pid {agent.pid}) has ended. Its reports stay: {typed('reports', config)}"
    )


def _nothing(state_dir: Path, config: Path | None) -> MldebugError:
    """Nothing to end is no failure; one that runs and is not `up`'s is named."""
    if ask_nearest(state_dir, here_only=config is not None).answer.outcome == "none":
        return NothingFoundError("no agent runs here", f"start one: {typed('up', config)}")
    return NothingFoundError(
        "the agent that runs here was not started by `mldebug up`: it goes on",
        "the service: `systemctl stop mldebug`, as root; any other: Ctrl-C where it was started",
    )


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug down`: end the agent that `mldebug up` has started."""
    return command
