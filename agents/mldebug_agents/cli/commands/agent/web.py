"""Say how to see the agent's pages in a browser, or open a port for one on this node."""

import contextlib
import os
import webbrowser
from pathlib import Path

import click

from mldebug.config.schema import load_config
from mldebug.core.errors import AccessError, MldebugError, ToolError
from mldebug.core.plugins import NoOptions
from mldebug.core.text import typed
from mldebug_agents.web.client import AgentAnswer, ask_nearest
from mldebug_agents.web.listeners import open_tcp, way_in
from mldebug_agents.web.relay import Relay


@click.command("web")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Open this port of 127.0.0.1 for a browser, until Ctrl-C; 0: any that is free.",
)
@click.option(
    "--open",
    "in_browser",
    is_flag=True,
    help="Open the pages in a browser on this node, on any free port unless --port says one.",
)
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(port: int | None, in_browser: bool, config: Path | None) -> None:
    """Say how to see the agent's pages in a browser.

    Without options: the ssh command to type on your own machine; nothing is opened here. With --port a browser on this
    node, or behind `ssh -L`, sees what you may see: it needs the link that is printed, since every user of the node can
    connect to the port.
    """
    settings = load_config(config)
    state_dir, answer = ask_nearest(settings.agent.state_dir, here_only=config is not None)
    _check(answer, config)
    if port is None and not in_browser:
        for line in way_in(state_dir, config):
            click.echo(line)
        return
    listener = open_tcp(f"127.0.0.1:{port or 0}")
    where = f"http://127.0.0.1:{listener.getsockname()[1]}"
    click.echo("Ctrl-C ends it. Each link works for one browser:")
    links: list[str] = []

    def show(path: str) -> None:
        links.append(where + path)
        click.echo(f"  {links[-1]}")

    relay = Relay(state_dir, show, own_only=in_browser)
    if in_browser:
        _open(links[0])  # the listener queues it until the relay serves
    with contextlib.suppress(KeyboardInterrupt):
        relay.serve(listener)


def _open(link: str) -> None:
    """Open a link in the user's browser; one that runs in the terminal would take it, so there must be a display."""
    shown = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not shown or not webbrowser.open(link):
        click.echo("no browser can be opened here: open the link yourself", err=True)


def _check(answer: AgentAnswer, config: Path | None) -> None:
    """There must be somebody to show the pages."""
    if answer.outcome == "none":
        raise ToolError("no agent runs here", f"start one: {typed('up', config)}")
    if answer.outcome == "denied":
        raise AccessError(answer.trouble, "ask as root")
    if answer.outcome == "silent":
        raise MldebugError(answer.trouble, "see its log")


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug web`: say how to see the agent's pages in a browser, or open a port for one on this node."""
    return command
