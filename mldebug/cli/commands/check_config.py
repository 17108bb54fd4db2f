"""Check a config file: every problem at once."""

from pathlib import Path

import click

from mldebug.config.schema import effective_yaml, load_config
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean


@click.command("check-config")
@click.argument("file", required=False, type=click.Path(path_type=Path, readable=False))
@click.option(
    "--print", "show", is_flag=True, help="Print the effective config, defaults included."
)
def command(file: Path | None, show: bool) -> None:
    """Check a config file and name everything that is wrong in it, line by line.

    Without FILE, --print shows the defaults. Exit code 0: the file is good; 2: it is not.
    """
    if file is None and not show:
        raise click.UsageError("name a FILE, or ask for the defaults with --print")
    config = load_config(file)
    if show:
        click.echo(effective_yaml(config), nl=False)
    else:
        click.echo(f"{clean(str(file), 400)} is good")


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug check-config`: check a config file: every problem at once."""
    return command
