"""Try which lines of a training log are understood."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import FILE
from mldebug.core.errors import AccessError, ExitCode, UsageError
from mldebug.core.plugins import NoOptions, create_all, load
from mldebug.core.progress import progress_line
from mldebug.core.text import plural
from mldebug.core.units import duration_words
from mldebug.jobs.logs.parser import LogParser
from mldebug.jobs.logs.records import LogFormat, LogRecord
from mldebug.jobs.logs.trial import FormatTrial, LogTrial, try_log

CHUNK = 1 << 20  # bytes
OWN = "your pattern"
NO_STEP = "no line tells a step: a stall of this job is noticed by its ranks alone, later"
HOW = r"try one: mldebug logs try FILE --pattern 'it (?P<step>\d+).* loss (?P<loss>\S+)'"


@click.group("logs")
def command() -> None:
    """Try which lines of a training log are understood."""


@command.command("try")
@click.argument("file", type=FILE)
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="REGEX",
    help="A pattern of your own, as in `logs: {mine: {kind: regex, pattern: …}}`; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def try_file(file: str, patterns: tuple[str, ...], as_json: bool) -> None:
    """Say which lines of a log are understood, as what, and which are not.

    FILE is the output of a training job, - for stdin. It is read as the agent reads it: your patterns first, then every format that is built in.

    Exit code 0: at least one line tells a step; 1: none does.
    """
    with progress_line("reading the log"):
        trial = try_log(_chunks(file), LogParser(create_all("logs"), _own(patterns)))
    has_step = any(one.last_step is not None for one in trial.formats)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(trial), indent=2).decode())
    else:
        console = Console()
        for line in lines(trial, has_step=has_step):
            print_line(console, line)
    sys.exit(ExitCode.FINE if has_step else ExitCode.FOUND)


def lines(trial: LogTrial, *, has_step: bool) -> Iterator[Text]:
    """The result of the trial as lines for people: each format with an example, then lines that were not understood."""
    yield Text(f"{trial.understood} of {plural(trial.lines, 'line')} understood", style="bold")
    for one in trial.formats:
        yield Text(f"  {one.format}: {_summary(one)}", style="green")
        yield Text(f"    {one.example}")
        if one.read:
            yield Text(f"    read as: {_record(one.read)}")
    for name in trial.slow:
        yield Text(f"  {name} took too long and was no longer tried", style="yellow")
    if trial.counting:
        seems = f"{plural(trial.counting, 'more line')} with a number, in which no step was read, such as"
        yield Text(f"  {seems}:", style="yellow")
        for line in trial.left:
            yield Text(f"    {line}")
    if not has_step:
        yield Text(NO_STEP, style="yellow")
        yield Text(HOW)


def _summary(one: FormatTrial) -> str:
    parts = [plural(one.lines, "line")]
    if one.last_step is not None:
        of = f" of {one.total}" if one.total is not None else ""
        parts.append(f"step {one.first_step} to {one.last_step}{of}")
    else:
        parts.append("no step")
    parts.append(f"{one.with_loss} with a loss" if one.with_loss else "no loss")
    return ", ".join(parts)


def _record(record: LogRecord) -> str:
    parts = [
        "" if record.step is None else f"step {record.step}",
        "" if record.total is None else f"of {record.total}",
        "" if record.loss is None else f"loss {record.loss:g}",
        "" if record.step_seconds is None else f"{duration_words(record.step_seconds)} a step",
        f"at {record.place}" if record.place else "",
        *(f"{name} {value:g}" for name, value in record.scalars.items()),
    ]
    return ", ".join(part for part in parts if part) or "progress without a step"


def _own(patterns: tuple[str, ...]) -> dict[str, LogFormat]:
    regex = load("logs", "regex")
    return {OWN: regex.create(regex.Options(patterns=patterns))} if patterns else {}


def _chunks(file: str) -> Iterator[bytes]:
    if file == "-":
        yield from iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
        return
    try:
        with Path(file).open("rb") as opened:
            yield from iter(lambda: opened.read(CHUNK), b"")
    except OSError as error:
        kind = AccessError if isinstance(error, PermissionError) else UsageError
        raise kind(
            f"cannot read {file}: {error.strerror}", "name a file that you may read, or - for stdin"
        ) from error


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug logs`: try which lines of a training log are understood."""
    return command
