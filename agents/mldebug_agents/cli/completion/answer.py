"""What one TAB prints: a line for each candidate, `TYPE, tab, VALUE, tab, SENTENCE`. `mldebug.cli.main` swallows errors.

zsh and fish give the words as arguments. bash gives its line, and the piece of the last word that it will replace.

Values are looked up in a child process, because a home, a config file or an agent may hang. It is forked here and not by
`spawn.py`: the whole command lives for a tenth of a second and starts no program. A child that hangs is killed and not waited
for, and holds none of the shell's pipes open.

Click's own parser finds out what is being typed, with commands that do nothing: they are made from the completion table.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string
from click.types import StringParamType

from mldebug.core.plugins import create
from mldebug.core.redact import clean
from mldebug_agents.cli.completion.request import LISTED, CompletionRequest, Value, is_plain
from mldebug_agents.cli.completion.table import Parameter, Verb, read_table
from mldebug_agents.cli.completion.values import ValueSource

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


def complete(shell: str, arguments: Sequence[str]) -> None:
    """Print the candidates for the last word of a command line, in the form that the shell's completion script reads.

    `shell`: bash, zsh or fish. `arguments`: for bash the line and the piece of its last word to
    replace, else the words.
    """
    output = "".join(f"{line}\n" for line in lines(shell, list(arguments)))
    sys.stdout.write(output)
    sys.stdout.flush()


def lines(shell: str, arguments: list[str]) -> list[str]:
    """The candidates for the last word, one a line, in this shell's form; bash gets no descriptions."""
    line, piece = (*arguments, "", "")[:2]
    words = split(line) if shell == "bash" else arguments
    found = candidates(read_table(), words, look_aside, described=shell != "bash")
    word = words[-1] if words else ""
    option = word[: word.find("=") + 1] if word.startswith("--") else ""
    cut = word.removesuffix(piece) if shell == "bash" else ""
    return [_line(one, option, cut) for one in found]


def split(line: str) -> list[str]:
    """The words of a line after the program's name. The last one is being typed and may be empty."""
    words = split_arg_string(line)
    return [*words[1:], *([""] if line[-1:].isspace() else [])]


def _line(one: CompletionItem, option: str, cut: str) -> str:
    sentence = (one.help or "").replace("\t", " ").replace("\n", " ")
    word = one.value if one.value.startswith("--") else option + one.value
    return f"{one.type}\t{word.removeprefix(cut)}\t{sentence}"


DEADLINE = 0.7  # seconds; usually it takes 0.05


CHUNK = 1 << 16


def look_aside(kind: str, request: CompletionRequest) -> list[Value]:
    """The values that one completion plugin offers, asked in a child process; empty where that
    takes more than `DEADLINE` seconds or fails.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(kind, request, writing)
    os.close(writing)
    encoded = _read(reading, time.monotonic() + DEADLINE)
    os.close(reading)
    if encoded is None:
        os.kill(pid, signal.SIGKILL)  # and not waited for: the kernel may hold it
        return []
    os.waitpid(pid, 0)
    return msgspec.json.decode(encoded, type=list[Value]) if encoded else []


def _answer(kind: str, request: CompletionRequest, writing: int) -> None:
    """In the child: look up the values, write them as JSON, exit. Never returns."""
    # whatever it is: TAB offers nothing, and prints nothing into a command line
    with contextlib.suppress(BaseException):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        encoded = msgspec.json.encode(values(kind, request))
        while encoded:
            encoded = encoded[os.write(writing, encoded) :]
    os._exit(0)


def values(kind: str, request: CompletionRequest) -> list[Value]:
    """The values that one completion plugin offers, at most `LISTED`.

    Words that a shell would not take literally are left out.
    """
    source: ValueSource = create("completions", kind)
    found = source.values(request)
    plain = [one for one in dict.fromkeys(found) if is_plain(one.word)]
    return [Value(one.word, clean(one.sentence, 200)) for one in plain[:LISTED]]


def _read(reading: int, until: float) -> bytes | None:
    """Return all that the child wrote, b"" if it failed; None where it has not ended in time."""
    received = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            break
        chunk = os.read(reading, CHUNK)
        if not chunk:
            return received
        received += chunk
    return None
