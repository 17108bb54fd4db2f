"""Name the nodes that cause more than their share of failures."""

from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.config.schema import load_config
from mldebug.core.errors import UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.fleet.answers.lemons import LemonList, lemon_lines, slurm_exclude
from mldebug_agents.fleet.asking import ask_hub
from mldebug_agents.fleet.places import LEMONS

STYLES = {"lemon": "red", "ill": "yellow"}


@click.command("lemons")
@click.option("--slurm-exclude", "for_slurm", is_flag=True, help="Print only the nodes to leave out, as `sbatch --exclude=` takes them.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print an object with all scores and reasons.")  # fmt: skip
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(for_slurm: bool, as_json: bool, config: Path | None) -> None:
    """Name the nodes that cause more than their share of failures, with the evidence.

    Asks the hub, which remembers incidents, hardware faults and probes of all nodes. A GPU's history goes with it when it is built into
    another node. What a program did by itself speaks against no node.
    """
    if for_slurm and as_json:
        raise UsageError("--slurm-exclude and --json are two outputs", "choose one")
    with progress_line("asking the hub"):
        found = ask_hub(load_config(config), LEMONS, LemonList)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif for_slurm:
        click.echo(slurm_exclude(found))
    else:
        _print(found)


def _print(found: LemonList) -> None:
    console = Console()
    styles = {f"{one.node}: ": STYLES.get(one.standing, "") for one in found.nodes}
    for line in lemon_lines(found):
        style = next((style for begin, style in styles.items() if line.startswith(begin)), "")
        print_line(console, Text(clean(line, 400), style=style))
    if not found.nodes:
        click.echo("The hub knows of no evidence against any node.")


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug lemons`: name the nodes that cause more than their share of failures."""
    return command
