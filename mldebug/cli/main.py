"""The command line: finds the verbs by name, and is the one place where an error becomes a sentence and an exit code."""

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from mldebug import __version__
from mldebug.cli.help_texts import stored_help
from mldebug.core.errors import ExitCode, MldebugError, UsageError
from mldebug.core.plugins import create, load, modules, names, summary

GROUPS = {
    "Find the culprit": ("dump", "diagnose", "why", "flight-recorder", "reports", "share"),
    "Look at this node": (
        "up",
        "down",
        "agent",
        "status",
        "top",
        "web",
        "gpus",
        "slow",
        "profile",
        "memory",
        "goodput",
        "checkpoints",
        "usage",
        "probe",
        "doctor",
        "support-bundle",
        "mcp",
    ),
    "Look at all nodes": ("hub", "lemons", "retry-advice", "fleet"),
    "Try and set up": (
        "demo",
        "preflight",
        "run",
        "trace",
        "logs",
        "switch",
        "check-config",
        "notify",
        "completion",
    ),
}
OTHERS = "More"
EXIT_CODES = """\
Exit codes:
  0  fine, or there is nothing to look at
  1  a stall or a failed check was found
  2  wrong usage or config
  3  it could not be done: a permission, a tool or an answer is missing
  70 mldebug itself failed: an error of its own, or its output cannot be written
"""
VERB_WIDTH = 15
INTERRUPTED = 130
BROKEN_PIPE = 141
REPORT_IT = "this is a bug: please report it with what `mldebug --debug …` prints"
COMPLETION = "_MLDEBUG_COMPLETE"
_TYPED = re.compile(r"mldebug(?: [^`]*|(?=`))")


class VerbGroup(click.Group):
    """The `click` group whose commands (verbs) are the plugins of kind `commands`; only the requested one is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands; none of them is imported."""
        return [_verb(name) for name in names("commands")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the file of one command and build it; None where there is no such command."""
        name = cmd_name.replace("-", "_")
        if _verb(name) != cmd_name or name not in names("commands"):
            return None
        command: click.Command = create("commands", name)
        command.name, command.short_help = cmd_name, summary("commands", name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in `args`. For an unknown one raise UsageError, which proposes the nearest name."""
        verbs = self.list_commands(ctx)
        if args and args[0] not in verbs and not args[0].startswith("-"):
            near = import_module("difflib").get_close_matches(
                args[0].replace("_", "-").lower(), verbs, n=1
            )
            hint = f"did you mean {near[0]!r}?" if near else f"choose from: {', '.join(verbs)}"
            raise UsageError(f"there is no command {_clean(args[0], 40)!r}", hint)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help text: the commands first, then the options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, grouped by what a person wants to do, one line each."""
        found = modules("commands")
        for title, verbs in _grouped(self.list_commands(ctx)):
            with formatter.section(title):
                rows = [(verb.ljust(VERB_WIDTH), _one_line(verb, found)) for verb in verbs]
                formatter.write_dl(rows, col_spacing=2)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes at the end of the help text."""
        formatter.write("\n" + EXIT_CODES)


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.option("--debug", is_flag=True, envvar="MLDEBUG_DEBUG", help="Show tracebacks.")
@click.version_option(
    __version__,
    "-V",
    "--version",
    message=f"mldebug %(version)s (Python {sys.version.split()[0]})",
)
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Find out why a distributed training run hangs, and which rank is to blame.

    A job hangs? Run this on any of its nodes, as the job's user or as root:

    \b
        mldebug dump
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; every error ends here, as a sentence on stderr."""
    arguments = _as_option(list(sys.argv[1:] if argv is None else argv))
    _open_closed_streams()
    _never_fail_to_print()
    if COMPLETION in os.environ:
        with contextlib.suppress(Exception, KeyboardInterrupt):  # there is a prompt above it
            load("commands", "completion").complete(os.environ[COMPLETION], arguments)
        return int(ExitCode.FINE)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        click.echo("", err=True)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place that catches everything
        return _explain(error, _wants_traceback(arguments))
    return code


def _as_option(arguments: list[str]) -> list[str]:
    """`help`, `help VERB` and `version` mean what --help and --version do."""
    if arguments[:1] == ["help"]:
        return [*arguments[1:], "--help"]
    return ["--version"] if arguments == ["version"] else arguments


def _run(arguments: list[str]) -> int:
    """Return the code of the command: what it returns, raises as SystemExit or click's Exit, else 0."""
    if text := stored_help(arguments):
        click.echo(text)
        return int(ExitCode.FINE)
    try:
        with cli.make_context("mldebug", list(arguments)) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except SystemExit as error:
        return int(error.code or 0)
    return int(result) if isinstance(result, int) else int(ExitCode.FINE)


def _explain(error: Exception, debug: bool) -> int:
    if debug:
        import_module("traceback").print_exception(error)
    if isinstance(error, MldebugError):
        _say(error.message, error.way_out)
        return int(error.exit_code)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a verb of verbs, and none of them
        click.echo(error.format_message(), err=True)
        return int(ExitCode.USAGE)
    if isinstance(error, click.ClickException):
        path = (
            error.ctx.command_path
            if isinstance(error, click.UsageError) and error.ctx
            else "mldebug"
        )
        _say(" ".join(error.format_message().split()), f"{path} --help")
        return int(ExitCode.USAGE)
    if isinstance(error, OSError) and (
        error.errno in (errno.ENOSPC, errno.EDQUOT)
        or (error.errno == errno.EBADF and not _has_output())
    ):
        _drop_stdout()
        _say(
            f"the output cannot be written: {error.strerror}",
            "free space, or redirect it elsewhere",
        )
        return int(ExitCode.BROKEN)
    _say(f"internal error: {type(error).__name__}: {error}", REPORT_IT)
    return int(ExitCode.BROKEN)


def _has_output() -> bool:
    """Whether stdout and stderr are open; if the program itself has closed one, that is an error of the program."""
    with contextlib.suppress(OSError):
        return all(os.fstat(stream) for stream in (1, 2))
    return False


def _say(message: str, way_out: str) -> None:
    """Write a sentence (one line per problem) and the way out; text in it may come from a job."""
    with contextlib.suppress(OSError):  # stderr is closed: the exit code says it
        for line in message.splitlines() or [""]:
            click.echo(_folded(f"mldebug: {_clean(line, 1000)}"), err=True)
        if way_out:
            click.echo(_folded(f"  way out: {_clean(way_out, 1000)}"), err=True)


def _folded(line: str) -> str:
    """On a terminal it goes on below its beginning; what is to be typed stays whole, so that it can be copied."""
    if not sys.stderr.isatty():
        return line
    whole = _TYPED.sub(lambda found: found[0].replace(" ", "\xa0"), line)
    width = shutil.get_terminal_size().columns
    parts: list[str] = import_module("textwrap").wrap(whole, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return "\n".join(parts).replace("\xa0", " ")


def _wants_traceback(arguments: Sequence[str]) -> bool:
    before_verb = [argument for argument in arguments[:1] if argument == "--debug"]
    return bool(before_verb) or os.environ.get("MLDEBUG_DEBUG", "") not in ("", "0")


def _open_closed_streams() -> None:
    """Who closes one (`>&-`) does not want it; a file that took its number would get what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            if null > number:
                os.close(null)
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115 - as long as we are


def _never_fail_to_print() -> None:
    """A terminal that cannot show a character gets an escape instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """Send what is still buffered nowhere, or the interpreter complains about it at exit."""
    with contextlib.suppress(OSError, ValueError):  # stdout is closed, or no file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _grouped(verbs: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    placed = {verb for group in GROUPS.values() for verb in group}
    for title, group in GROUPS.items():
        if present := [verb for verb in group if verb in verbs]:
            yield title, present
    if others := [verb for verb in verbs if verb not in placed]:
        yield OTHERS, others


def _one_line(verb: str, found: Mapping[str, str]) -> str:
    try:
        return summary("commands", verb.replace("-", "_"), found)
    except Exception as error:  # noqa: BLE001 - one broken plugin must not hide the others
        return f"(cannot be loaded: {type(error).__name__}: {_clean(str(error), 60)})"


def _clean(text: str, length: int) -> str:
    """Harmless on a terminal; to compile the patterns of secrets beside it is a tenth of a `--help`."""
    return str(import_module("mldebug.core.redact").clean(text, length))


def _verb(name: str) -> str:
    return name.replace("_", "-")
