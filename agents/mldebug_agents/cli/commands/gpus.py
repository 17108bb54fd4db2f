"""List the GPUs here; have the agent let go of them."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import ExitCode, MldebugError, ToolError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.core.text import typed
from mldebug.core.units import duration_words, parse_duration
from mldebug.hardware.health.sentences import complaints, headline
from mldebug.status.cluster_nodes import viewed
from mldebug.status.gpu_table import missing, rows, table, users
from mldebug.status.gpu_view import GpuOverview
from mldebug.status.merged_runs import ViewedNodes
from mldebug.status.node_lines import gpus_of_nodes
from mldebug_agents.agent.node_look import send_view
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.cli.node_options import node_options
from mldebug_agents.cluster.fanout.progress_line import Waiting
from mldebug_agents.cluster.node_views import (
    cluster_view,
    exit_code,
    far_nodes,
    refuse_both,
    view_nodes_once,
)
from mldebug_agents.hardware.gpu.controller import ACCEPT, LONGEST, RELEASE, Accepted, Released
from mldebug_agents.hardware.one_shot import OneShotReader
from mldebug_agents.web.client import ask_nearest
from mldebug_agents.web.control_requests import post_to_agent

SECONDS = 20.0  # a driver that no process uses may load firmware first
NO_GPUS = "no GPU answers here: there is no NVIDIA library"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _config(command: _Command) -> _Command:
    option = click.option(
        "--config", type=click.Path(path_type=Path, readable=False), help="Config file."
    )
    return option(command)


@click.group("gpus", invoke_without_command=True)
@click.pass_context
def group(context: click.Context) -> None:
    """List the GPUs here; have the agent let go of them, or expect others than before.

    Without a command: list.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print an object with all that is known.")
@click.option("--cluster", "everywhere", is_flag=True, help="All nodes, as the agents know them.")
@node_options
@_config
def list_(
    as_json: bool, everywhere: bool, slurm_job: str | None, hosts: str | None, there: str, wait: str | None, send: bool,
    config: Path | None,
) -> None:  # fmt: skip
    """Show each GPU: load, who works on it, its health.

    As the agent of this node sees them, or read directly where none runs. Of several nodes those whose GPUs are alike
    share a line. Exit code 3: a node did not answer.
    """
    settings = load_config(config)
    if send:
        send_view(settings, here_only=config is not None, gpus=True)
        return
    if far := far_nodes(("gpus", "list", "--send"), slurm_job, hosts, there, wait):
        refuse_both(everywhere)
        with Waiting(quiet=as_json) as progress:
            nodes = view_nodes_once(settings, far, progress)
        sys.exit(_show_nodes(nodes, as_json))
    if everywhere:
        view = cluster_view(settings, here_only=config is not None)
        sys.exit(_show_nodes(viewed(view), as_json))
    overview = _look(settings, here_only=config is not None)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(overview), indent=2).decode())
        return
    show_list(overview, Console(), time.time())


def _show_nodes(nodes: ViewedNodes, as_json: bool) -> ExitCode:
    """Print what several nodes have said."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(nodes), indent=2).decode())
    else:
        console = Console()
        for line in gpus_of_nodes(nodes):
            print_line(console, Text(line.text, style="red" if line.bad else ""), prose=True)
    return exit_code(nodes)


def _look(config: Config, *, here_only: bool) -> GpuOverview:
    """Return the agent's view of the GPUs, or read them directly; ToolError where there is no NVIDIA library."""
    with progress_line("reading the GPUs"), open_tools(config) as tools:
        state_dir = config.agent.state_dir
        found = tools.capture.finder.find()
        look = OneShotReader(
            tools.context,
            tools.gpus,
            found,
            SECONDS,
            lambda: ask_nearest(state_dir, here_only=here_only).answer.snapshot,
        )
        overview = look.take()
    if overview.no_library:
        raise ToolError(NO_GPUS, "install the driver, or ask on a node that has GPUs")
    return overview


def show_list(overview: GpuOverview, console: Console, now: float) -> None:
    """Print the list of GPUs, the same lines to a terminal and to a pipe. `now`: unix time."""
    for line in list_lines(overview, now):
        print_line(console, line, prose=True)


def list_lines(overview: GpuOverview, now: float) -> Iterator[Text]:
    """The list of GPUs line by line, 80 columns wide unless names are unusually long. `now`: unix time."""
    found = rows(overview)
    yield Text(clean(f"{overview.node}: {_title(overview, now)}", 300), style="bold")
    if overview.released_until:
        left = duration_words(int(overview.released_until - now))
        yield Text(f"the agent has let go of the GPUs for another {left}: nobody reads them")
    if found:
        for line in table(found):
            yield Text(line, no_wrap=True, style="red" if line.endswith(("missing", "unhealthy")) else "")  # fmt: skip
    if overview.gpu_gap is not None:
        yield Text(clean(f"not read: {overview.gpu_gap.reason}", 400), style="red")
    for line in users(overview.users, {uuid: one.index for uuid, one in overview.names().items()}):
        yield Text(line)
    for wrong in complaints(overview.health, overview.names(), now):
        yield Text(clean(wrong.text, 400), style="red")


def _title(overview: GpuOverview, now: float) -> str:
    gpus = overview.gpus.gpus if overview.gpus else ()
    names = sorted({one.name for one in gpus if one.name})
    parts = [headline([one.uuid for one in gpus], overview.health)]
    parts += [f"{gone} missing"] if (gone := len(missing(overview))) else []
    parts += [", ".join(names)] if names else []
    if overview.gpus and overview.gpus.driver_version:
        parts.append(f"driver {overview.gpus.driver_version}")
    if overview.by_agent and overview.gpus:
        parts.append(f"read {max(0.0, now - overview.gpus.at):.0f} s ago by the agent")
    return "; ".join(parts)


@group.command("release")
@click.option("--for", "duration", metavar="DURATION", help="How long: 10m.")
@click.option("--end", is_flag=True, help="Take them up again now.")
@_config
def release(duration: str | None, end: bool, config: Path | None) -> None:
    """Have the agent let go of all GPUs, for a reset.

    `nvidia-smi --gpu-reset` fails while anybody holds a GPU. The agent takes them up again by itself when the time is
    over. It lets go by itself, too, where the driver asks for a reset and no process uses a GPU. Only root, the
    agent's user and members of agent.group may ask.
    """
    seconds = _seconds(duration, end=end)
    answer = post_to_agent(_state_dir(config), RELEASE, Released, seconds=seconds)
    if end:
        click.echo("The agent watches the GPUs again.")
        return
    if not answer.closed:
        raise MldebugError(
            f"the agent does not use the GPUs for {duration}, but the process that reads them has not ended:"
            " it sits in a call into the driver",
            "reboot the node: a GPU whose driver hangs cannot be reset",
        )
    click.echo(f"The agent has closed all GPUs for {duration}. Reset one with:")
    click.echo("  nvidia-smi --gpu-reset -i INDEX")
    click.echo("Then have them watched again:")
    click.echo(f"  {typed('gpus release --end', config)}")


def _seconds(duration: str | None, *, end: bool) -> float:
    if end == (duration is not None):
        raise UsageError("say how long, or that it is over", "add --for 10m, or --end")
    if duration is None:
        return 0.0
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise UsageError(f"--for {duration!r}: {error}", "write it like 10m") from error
    if not 0 < seconds <= LONGEST:
        most = duration_words(LONGEST)
        raise UsageError(f"--for {duration}: it may be up to {most}", "write it like 10m")
    return seconds


def _state_dir(config: Path | None) -> Path:
    """Where the agent that is to be asked lives; an error in words where none answers."""
    nearest = ask_nearest(load_config(config).agent.state_dir, here_only=config is not None)
    if nearest.answer.outcome in ("silent", "denied"):
        raise MldebugError(nearest.answer.trouble, "see its log, or ask as root")
    return nearest.state_dir


@group.command("accept")
@_config
def accept(config: Path | None) -> None:
    """Expect only the GPUs that are there now.

    One that was taken out is no longer missing. Only root, the agent's user and members of agent.group may ask.
    """
    answer = post_to_agent(_state_dir(config), ACCEPT, Accepted)
    many = "GPU is" if answer.expected == 1 else "GPUs are"
    click.echo(f"{answer.expected} {many} expected from now on.")


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug gpus`: list the GPUs here; have the agent let go of them."""
    return group
