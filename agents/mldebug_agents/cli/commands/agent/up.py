"""Start an agent for your jobs in the background, and say how to see its pages."""

import os
import sys
import time
from pathlib import Path

import click

from mldebug.config.schema import SYSTEM_STATE_DIR, Config, load_config
from mldebug.core.errors import AccessError, MldebugError, NothingFoundError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.text import typed
from mldebug_agents.system.service.background import (
    LOG_FILE,
    BackgroundAgent,
    last_lines,
    launch,
    only_one,
    running,
)
from mldebug_agents.web.client import NearestAgent, ask_nearest
from mldebug_agents.web.listeners import open_tcp, way_in

START_SECONDS = 60.0  # until it answers, on a crowded node
PATIENCE = 2.0  # seconds until a person is told that something is awaited
POLL = 0.1
SERVING = ("answered", "starting")


@click.command("up")
@click.option("--status", is_flag=True, help="Start nothing: say whether an agent serves you.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(status: bool, config: Path | None) -> None:
    """Start an agent for your jobs in the background, and say how to see its pages.

    Needs no root: it watches the jobs that you may see. Where an agent serves you already, nothing is started.
    `mldebug down` ends it.
    """
    settings = load_config(config)
    state_dir = settings.agent.state_dir
    nearest = ask_nearest(state_dir, here_only=config is not None)
    if nearest.answer.outcome in SERVING:
        _show_present(nearest, config, "" if status else ": nothing was started")
        return
    if status and nearest.answer.outcome == "none":
        raise NothingFoundError("no agent runs here", f"start one: {typed('up', config)}")
    if nearest.answer.outcome == "denied" and nearest.state_dir == state_dir:
        raise AccessError(nearest.answer.trouble, "ask as root, or set another agent.state_dir")
    if nearest.answer.outcome == "silent" and nearest.state_dir == state_dir:
        raise MldebugError(nearest.answer.trouble, "see its log; `mldebug down` ends one of yours")
    if status:
        raise MldebugError(nearest.answer.trouble or "it cannot be asked", "mldebug doctor")
    agent, quiet = _start(settings, config)
    click.echo(f"An agent watches your jobs in the background (pid {agent.pid}).")
    if quiet:
        click.echo(f"{settings.agent.listen} is taken, so Prometheus finds no metrics of it there.")
    _show_ways(state_dir, config)


def _start(settings: Config, config: Path | None) -> tuple[BackgroundAgent, bool]:
    """Start the agent and wait until it answers. Also whether its metrics port was taken by somebody else."""
    state_dir = settings.agent.state_dir
    try:
        with only_one(state_dir) as file:
            if agent := running(state_dir):
                return _await(agent, state_dir), False
            quiet = config is None and metrics_port_taken(settings.agent.listen)
            # -P: nothing is imported from the folder in which somebody types this
            words = [sys.executable, "-P", "-m", "mldebug", "agent"]
            words += ["--listen", ""] if quiet else []
            words += ["--config", str(config.absolute())] if config else []
            launch(words, file)
            started = running(state_dir)
    except OSError as error:
        raise AccessError(
            f"{state_dir} cannot be used: {error.strerror}", "set another agent.state_dir"
        ) from error
    if started is None:
        raise _ended(state_dir)
    return _await(started, state_dir), quiet


def _await(agent: BackgroundAgent, state_dir: Path) -> BackgroundAgent:
    """Wait until the agent answers. Raises MldebugError where it ends before, or takes too long."""
    begun, announced = time.monotonic(), not sys.stderr.isatty()
    while time.monotonic() < begun + START_SECONDS:
        if ask_nearest(state_dir, here_only=True).answer.outcome in SERVING:
            return agent
        if running(state_dir) != agent:
            raise _ended(state_dir)
        if not announced and time.monotonic() > begun + PATIENCE:
            click.echo("waiting for the agent to answer …", err=True)
            announced = True
        time.sleep(POLL)
    raise MldebugError(
        f"the agent (pid {agent.pid}) does not answer yet", f"see {state_dir / LOG_FILE}"
    )


def _ended(state_dir: Path) -> MldebugError:
    """The agent's last words, without their times: they say what is wrong, and the way out."""
    words = "\n".join(line.strip() for line in last_lines(state_dir, 2))
    return MldebugError(
        f"the agent ended at once\n{words}".strip(), f"the whole log: {state_dir / LOG_FILE}"
    )


def metrics_port_taken(listen: str) -> bool:
    """Whether another process uses the port, such as the agent of a second user on a login node."""
    if not listen:
        return False
    try:
        open_tcp(listen).close()
    except UsageError:
        return True
    return False


def _show_present(nearest: NearestAgent, config: Path | None, more: str) -> None:
    """An agent is here already: whose it is, and how to see it. `more`: what is said of it besides."""
    mine, already = running(nearest.state_dir), " already" if more else ""
    if mine:
        click.echo(f"Your agent runs{already} (pid {mine.pid}){more}.")
    elif nearest.state_dir == SYSTEM_STATE_DIR and os.geteuid() != 0:
        click.echo(f"The agent of this node watches your jobs{already}{more}.")
    else:
        click.echo(f"An agent runs here{already}{more}.")
    _show_ways(nearest.state_dir, config, mine is not None)


def _show_ways(state_dir: Path, config: Path | None, mine: bool = True) -> None:
    """How to see the pages; of one's own agent also where its log is, and how to end it."""
    click.echo("")
    for line in way_in(state_dir, config):
        click.echo(line)
    if mine:
        click.echo(f"\nIts log: {clean(str(state_dir / LOG_FILE), 400)}")
        click.echo(f"To end it: {typed('down', config)}")


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug up`: start an agent for your jobs in the background, and say how to see its pages."""
    return command
