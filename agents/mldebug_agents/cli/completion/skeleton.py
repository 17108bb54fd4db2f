"""Commands that do nothing, made from the completion table: with them click's own parser finds out what is being typed."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete
from click.types import StringParamType

from mldebug_agents.cli.completion.request import CompletionRequest, Value
from mldebug_agents.cli.completion.table import Parameter, Verb

Items = list[CompletionItem]
Look = Callable[[str, CompletionRequest], list[Value]]
NOTHING = "nothing"  # the type of an item: free text is typed here, and no option


class CompletedParam(StringParamType):
    """A click type that offers the possible values of one option or argument at TAB."""

    def __init__(self, parameter: Parameter, look: Look, described: bool) -> None:
        self._parameter, self._look, self._described = parameter, look, described

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The values that may stand here and begin with `incomplete`. `ctx` holds the words before it."""
        if self._parameter.paths:
            begun = self._parameter.paths == "command" and ctx.params.get(str(param.name))
            return [CompletionItem(incomplete, type="file" if begun else self._parameter.paths)]
        begin, found = "", self._values(ctx)
        if self._parameter.commas:
            begin = incomplete[: incomplete.rfind(",") + 1]
            taken = begin.split(",")
            found = [one for one in found if one.word not in taken]
        items = [
            CompletionItem(begin + one.word, help=one.sentence)
            for one in found
            if (begin + one.word).startswith(incomplete)
        ]
        return items or [CompletionItem(incomplete, type=NOTHING)]

    def _values(self, context: click.Context) -> list[Value]:
        if not self._parameter.looked:
            return [Value(word) for word in self._parameter.words]
        return self._look(
            self._parameter.looked, CompletionRequest(_config(context), self._described)
        )


class SkeletonGroup(click.Group):
    """A click group whose commands are made only when they are needed."""

    def __init__(self, verb: Verb, make: Callable[[Verb], click.Command]) -> None:
        super().__init__(verb.name)
        self._below = {one.name: one for one in verb.verbs}
        self._make = make

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the group's subcommands."""
        return list(self._below)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; for an unknown name one that takes nothing."""
        if cmd_name not in self._below:
            return click.Command(cmd_name, add_help_option=False)
        return self._make(self._below[cmd_name])


def candidates(table: Verb, words: list[str], look: Look, *, described: bool) -> Items:
    """What the last word may become. Where nothing fits an empty word, all options are offered.

    `look`: returns the values of a completion plugin; `described`: the shell shows descriptions.
    """
    command = make(table, look, described)
    *before, incomplete = words or [""]
    shell = ShellComplete(command, {}, table.name, "")
    found = shell.get_completions(before, incomplete)
    if not found and not incomplete and "--" not in before:
        found = shell.get_completions(before, "-")
    return [one for one in found if one.type != NOTHING]


def make(verb: Verb, look: Look, described: bool) -> click.Command:
    """A click command that knows the options and values of this verb, and runs nothing."""
    below = partial(make, look=look, described=described)
    command = SkeletonGroup(verb, below) if verb.verbs else click.Command(verb.name)
    command.short_help = verb.help
    if verb.short_help:
        command.context_settings["help_option_names"] = ["-h", "--help"]
    command.allow_interspersed_args = not (verb.rest or verb.verbs)
    command.params = list(
        _parameters(verb, partial(CompletedParam, look=look, described=described))
    )
    return command


def _parameters(
    verb: Verb, typed: Callable[[Parameter], CompletedParam]
) -> Iterator[click.Parameter]:
    for number, one in enumerate(verb.parameters):
        if not one.names:
            yield click.Argument(
                [f"argument{number}"], nargs=-1 if one.many else 1, type=typed(one), required=False
            )
        elif one.flag:
            yield click.Option([*one.names, f"option{number}"], is_flag=True, help=one.help)
        else:
            names = [*one.names, "config" if "--config" in one.names else f"option{number}"]
            yield click.Option(names, multiple=one.many, type=typed(one), help=one.help)


def _config(context: click.Context | None) -> Path | None:
    """The config file that stands on the command line, also before the verb."""
    while context is not None:
        if given := context.params.get("config"):
            return Path(os.path.expandvars(given)).expanduser()
        context = context.parent
    return None
