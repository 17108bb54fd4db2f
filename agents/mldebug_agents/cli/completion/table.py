"""All commands and options in one small file, `verbs.json`: loading the commands themselves takes a
second, and TAB may take a fifth of one.

The file is written from the real commands; a test compares the two.
"""

from pathlib import Path
from typing import Any

import click
import msgspec

from mldebug.cli.param_types import LookupParam, PathParam, WordListParam

FILE = Path(__file__).with_name("verbs.json")


class CompactStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the structs in the completion table. Default values are not written to the file."""


class Parameter(CompactStruct, frozen=True, kw_only=True):
    """An option, or an argument (which has no `names`), and which values it may have."""

    names: tuple[str, ...] = ()
    help: str = ""
    flag: bool = False
    many: bool = False
    words: tuple[str, ...] = ()  # the only legal values
    commas: bool = False  # several of them, with commas
    paths: str = ""  # file, dir or command
    looked: str = ""  # a completion plugin


class Verb(CompactStruct, frozen=True, kw_only=True):
    """One command of the completion table. `rest`: after its first argument another command line follows."""

    name: str
    help: str = ""
    short_help: bool = False  # -h, too
    rest: bool = False
    parameters: tuple[Parameter, ...] = ()
    verbs: tuple["Verb", ...] = ()


def read_table() -> Verb:
    """The root command of the completion table that ships with mldebug."""
    return msgspec.json.decode(FILE.read_bytes(), type=Verb)


def written(command: click.Group) -> str:
    """The text that `verbs.json` must have for this command."""
    verbs = table(command, click.Context(command, info_name="mldebug", **command.context_settings))
    return msgspec.json.format(msgspec.json.encode(verbs), indent=1).decode() + "\n"


def table(command: click.Command, context: click.Context) -> Verb:
    """A command with all its subcommands, in the form of the completion table. Hidden options are left out."""
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    return Verb(
        name=str(context.info_name),
        help=command.get_short_help_str(100),
        short_help="-h" in context.help_option_names,
        rest=not context.allow_interspersed_args and not isinstance(command, click.Group),
        parameters=tuple(_parameter(one) for one in shown),
        verbs=tuple(_below(command, context)) if isinstance(command, click.Group) else (),
    )


def _below(group: click.Group, context: click.Context) -> list[Verb]:
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [
        table(one, click.Context(one, info_name=name, parent=context, **one.context_settings))
        for name, one in found
        if one is not None and not one.hidden
    ]


def _parameter(one: click.Parameter) -> Parameter:
    option = isinstance(one, click.Option)
    kind = one.type
    return Parameter(
        names=(*one.opts, *one.secondary_opts) if option else (),
        help=one.help or "" if isinstance(one, click.Option) else "",
        flag=isinstance(one, click.Option) and (one.is_flag or one.count),
        many=one.multiple or one.nargs == -1,
        words=tuple(map(str, kind.choices)) if isinstance(kind, click.Choice) else getattr(kind, "words", ()),
        commas=isinstance(kind, WordListParam),
        paths=_paths(kind),
        looked=kind.kind if isinstance(kind, LookupParam) else "",
    )  # fmt: skip


def _paths(kind: "click.ParamType[Any]") -> str:
    if isinstance(kind, click.Path):
        return "dir" if kind.dir_okay and not kind.file_okay else "file"
    if isinstance(kind, click.File):
        return "file"
    if isinstance(kind, PathParam):
        return kind.paths
    return "command" if kind is click.UNPROCESSED else ""
