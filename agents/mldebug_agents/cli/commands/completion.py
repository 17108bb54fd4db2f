"""Print what makes a shell complete mldebug at TAB."""

from pathlib import Path

import click

from mldebug.core.plugins import NoOptions
from mldebug_agents.cli import completion
from mldebug_agents.cli.completion.answer import complete

__all__ = ["command", "complete", "create"]

SHELLS = ("bash", "zsh", "fish")
SCRIPTS = Path(completion.__file__).with_name("scripts")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print what makes a shell complete mldebug at TAB.

    The Debian package installs it. Elsewhere write it to a file that the shell reads by itself, in an existing folder:

    \b
      bash  ~/.local/share/bash-completion/completions/mldebug
      fish  ~/.config/fish/completions/mldebug.fish
      zsh   ~/.zfunc/_mldebug, with `fpath+=~/.zfunc` before compinit
    """
    click.echo((SCRIPTS / f"mldebug.{shell}").read_text(encoding="utf-8"), nl=False)


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug completion`: print what makes a shell complete mldebug at TAB."""
    return command
