"""Say how to see the agent's pages in a browser, or open a port for one on this node."""

import contextlib
import getpass
import os
import platform
import shlex
from pathlib import Path

import click

from mldebug.config.schema import load_config
from mldebug.core.errors import AccessError, MldebugError, ToolError
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.text import typed
from mldebug_agents.web.client import AgentAnswer, ask_nearest
from mldebug_agents.web.listeners import MAX_PATH, SOCKET, open_tcp
from mldebug_agents.web.relay import Relay


@click.command("web")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Open this port of 127.0.0.1 for a browser, until Ctrl-C; 0: any that is free.",
)
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(port: int | None, config: Path | None) -> None:
    """Say how to see the agent's pages in a browser.

    Without options: the ssh command to type on your own machine; nothing is opened here. With --port a browser on this
    node, or behind `ssh -L`, sees what you may see: it needs the link that is printed, since every user of the node can
    connect to the port.
    """
    settings = load_config(config)
    state_dir, answer = ask_nearest(settings.agent.state_dir, here_only=config is not None)
    _check(answer, config)
    if port is None:
        for line in way_in(state_dir, config):
            click.echo(line)
        return
    listener = open_tcp(f"127.0.0.1:{port}")
    where = f"http://127.0.0.1:{listener.getsockname()[1]}"
    click.echo("Ctrl-C ends it. Each link is good for one browser:")
    relay = Relay(state_dir, lambda path: click.echo(f"  {where}{path}"))
    with contextlib.suppress(KeyboardInterrupt):
        relay.serve(listener)


def way_in(state_dir: Path, config: Path | None) -> list[str]:
    """The lines that tell how to see the pages in a browser, with the commands to type."""
    path = state_dir / SOCKET
    host = clean(platform.node(), 80)
    if len(os.fsencode(path)) > MAX_PATH or ":" in str(path):
        to, then = "127.0.0.1:8080", f"type here: {typed('web --port 8080', config)}"
    else:
        to, then = str(path), "open http://localhost:8080/ there"
    return [
        "On your own machine type",
        "",
        f"  ssh -N -L 8080:{shlex.quote(to)} {host}",
        "",
        f"then {then}. You see what {getpass.getuser()} may see here if you log in as {getpass.getuser()}.",
        f"A browser on this node: {typed('web --port 8080', config)}",
    ]


def _check(answer: AgentAnswer, config: Path | None) -> None:
    """There must be somebody to show the pages."""
    if answer.outcome == "none":
        raise ToolError("no agent runs here", f"start one: {typed('agent', config)}")
    if answer.outcome == "denied":
        raise AccessError(answer.trouble, "ask as root")
    if answer.outcome == "silent":
        raise MldebugError(answer.trouble, "see its log")


def create(options: NoOptions) -> click.Command:
    """Build the command."""
    return command
