"""The help of every verb as it is printed, in one file, `help.json`, so that `--help` need not import the verb.

The file is written from the real commands; a test compares the two.
"""

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

FILE = Path(__file__).with_name("help.json")
WIDTH = 80  # columns; what a narrower terminal gets is folded anew
HELP = ("--help", "-h")


def stored_help(arguments: Sequence[str]) -> str:
    """The text for a command line that ends with --help, as `["reports", "list", "--help"]`; "" where the verb itself has to be asked."""
    if not arguments or arguments[-1] not in HELP or shutil.get_terminal_size().columns < WIDTH:
        return ""
    with suppress(OSError, ValueError, AttributeError):
        return str(json.loads(FILE.read_bytes()).get(" ".join(arguments[:-1]), ""))
    return ""  # the file is away or damaged: the verb says it


def written(command: click.Group) -> str:
    """The text that `help.json` must have for this command line; on a terminal of WIDTH columns."""
    context = click.Context(command, info_name="mldebug", **command.context_settings)
    return json.dumps(dict(_below(command, context)), indent=1, ensure_ascii=False) + "\n"


def _below(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    """The words after `mldebug`, and the help, of each verb of a group, those of its own verbs behind it.

    A verb whose own verbs are plugins is left out: those that are there when it is asked are what it has.
    """
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        if one is None:
            continue
        inner = click.Context(one, info_name=name, parent=context, **one.context_settings)
        if not isinstance(one, click.Group) or type(one).list_commands is click.Group.list_commands:
            yield (
                inner.command_path.partition(" ")[2],
                _with_help_option(one, inner).get_help(inner),
            )
        if isinstance(one, click.Group):
            yield from _below(one, inner)


def _with_help_option(command: click.Command, context: click.Context) -> click.Command:
    """A copy of a command with the help option that belongs to this context.

    Click makes that option once for each command, at its first call: one that was called without `mldebug` before it, as a test does, would
    have `--help` alone for ever.
    """
    copied = copy.copy(command)
    vars(copied).update(params=[*command.params], add_help_option=False)
    click.help_option(*context.help_option_names)(copied)
    return copied
