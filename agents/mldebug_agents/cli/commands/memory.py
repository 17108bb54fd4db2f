"""Say which lines of a running job hold its CUDA memory."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.capture.memory.sentences import live_facts
from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import JOB
from mldebug.config.schema import load_config
from mldebug.core.errors import ExitCode
from mldebug.core.model import Noun
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.memory import RankHolders, take_memory
from mldebug_agents.incidents.step_orders import seconds_of, step_target, stored

TEXT = "memory.txt"
PATHS = "stored in "  # what such a line says stays in one piece


class JobMemory(Noun, frozen=True, kw_only=True):
    """Who holds the memory of a job, as `--json` prints it. `folder`: the evidence folder of the report, "" where it was not stored."""

    job: str
    folder: str
    ranks: tuple[RankHolders, ...]


@click.command("memory")
@click.argument("name", required=False, type=JOB, metavar="[JOB]")
@click.option("--job", type=JOB, help="The job with this id or name; default: the only one here.")
@click.option("--ranks", metavar="RANKS", help="Which ranks: 0,5 or 0-3; default: the lowest here.")
@click.option("--wait", default="60s", show_default=True, metavar="DURATION", help="How long the next step may take.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(
    name: str | None,
    job: str | None,
    ranks: str | None,
    wait: str,
    as_json: bool,
    config: Path | None,
) -> None:
    """Say which lines of a running job hold its CUDA memory.

    For jobs that were started with `mldebug run --memory-history`: asked after the next step, added up by line and by phase. The
    answer lies in a report, too. Refused while a stall of the job is open.

    Exit code 0: all ranks have answered; 1: one has not, with the reason; 3: a right is missing.
    """
    own, patience = load_config(config), seconds_of(wait)
    with (
        progress_line("waiting for the ranks to answer at their next step"),
        open_tools(own) as tools,
    ):
        found, wanted, chosen = step_target(
            tools.capture, own.agent.state_dir, name or job, ranks, here_only=config is not None
        )
        taken = take_memory(tools.capture, chosen, patience)
        text = "\n".join(line for one in taken.ranks for line in rank_lines(one))
        files = {**taken.files, TEXT: text.encode()}
        folder, trouble = stored(tools.capture, wanted, found, files) if taken.files else ("", "")
    if as_json:
        answer = JobMemory(job=wanted.id, folder=folder, ranks=taken.ranks)
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    else:
        console = Console()
        for line in (*text.splitlines(), f"stored in {folder}" if folder else ""):
            print_line(console, Text(line, no_wrap=line.lstrip().startswith(PATHS)))
    if trouble:
        click.echo(f"mldebug: {trouble}", err=True)
    sys.exit(ExitCode.FOUND if any(one.failure for one in taken.ranks) else ExitCode.FINE)


def rank_lines(one: RankHolders) -> Iterator[str]:
    """The lines that show which code holds the CUDA memory of one rank."""
    if one.found is None:
        yield f"rank {one.rank} (pid {one.pid}): not known: {one.failure}"
        return
    yield f"rank {one.rank} (pid {one.pid})"
    yield from (f"  {line}" for line in live_facts(one.found))


def create(_: NoOptions) -> click.Command:
    """Build the command `mldebug memory`: say which lines of a running job hold its CUDA memory."""
    return command
