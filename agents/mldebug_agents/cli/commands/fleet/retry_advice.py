"""Say whether a job that ended can be started again: safe, without which nodes, or not before when."""

import sys
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.config.schema import load_config
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.fleet.answers.retry import CODES, RetryAdvice, advice_lines
from mldebug_agents.fleet.asking import ask_hub
from mldebug_agents.fleet.places import RETRY


@click.command("retry-advice")
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print an object with the evidence.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(job: str, as_json: bool, config: Path | None) -> None:
    """Say whether JOB (a name, or the id of a run) can be started again, with the evidence of the hub.

    It starts nothing. Exit codes: 0 safe; 10 safe without the nodes that are named; 11 not before the time that is named; 12 not as it is: it
    would fail the same way; 13 it runs; 2 the hub does not know the job; 3 no hub answers. `--json` has `without` and `not_before`.
    """
    with progress_line("asking the hub"):
        found = ask_hub(load_config(config), RETRY, RetryAdvice, job=job)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        console = Console()
        for line in advice_lines(found):
            print_line(console, Text(clean(line, 600)))
    sys.exit(CODES[found.standing])


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug retry-advice`: say whether a job that ended can be started again."""
    return command
