"""docs/commands.md, made from the commands' own help."""

from collections.abc import Iterator
from copy import copy

import click

from mldebug.cli.main import cli

HEAD = """# Commands

<!-- Made from the commands' own help by
     pytest tests/docs/test_site_pages.py --update-golden
     Do not edit. -->

`mldebug COMMAND --help` prints the same. Errors go to stderr in a sentence with the way out; `--json` is there wherever somebody might script.

| exit code | |
|---|---|
| 0 | fine, or there is nothing to look at |
| 1 | a stall or a failed check was found |
| 2 | wrong usage or config |
| 3 | it could not be done: a permission, a tool or an answer is missing |
| 70 | mldebug itself failed: an error of its own, or its output cannot be written |

`mldebug run` returns the job's own.
"""
WIDTH = 80


def page() -> str:
    """The whole page."""
    context = cli.make_context(
        "mldebug", [], terminal_width=WIDTH
    )  # with the settings of the real one, such as -h
    return "\n".join([HEAD, *_commands(cli, context)]).rstrip() + "\n"


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context, terminal_width=WIDTH)
        heading = "##" if context.parent is None else "###"
        yield f"{heading} {inner.command_path}\n\n```text\n{_help(command, inner)}\n```\n"
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _help(command: click.Command, context: click.Context) -> str:
    """Its help in this context: click keeps the option that the first context made, which may have been one without -h."""
    fresh = copy(command)
    fresh._help_option = None
    return fresh.get_help(context)
