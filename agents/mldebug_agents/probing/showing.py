"""Results of collectives as they come, and in files at the end."""

import time
from pathlib import Path

import click
import msgspec

from mldebug.probing.collectives import Collective
from mldebug.probing.csvtext import as_csv
from mldebug.probing.rows import HEADER, UNITS, row
from mldebug.probing.textfile import as_textfile
from mldebug.redact import clean
from mldebug_agents.probing.child import Event
from mldebug_agents.probing.measuring import Measurement, Telling
from mldebug_agents.probing.plotting import plot


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Where results go besides the table."""

    as_json: bool
    csv: Path | None
    plot: Path | None
    textfile: Path | None


def telling(output: Output, kept: dict[str, str]) -> Telling:
    """A table as it grows, on stdout; with --json on stderr, for whoever watches. `kept`: variables that matter."""

    def say(line: str) -> None:
        click.echo(line, err=output.as_json)

    def joined(event: Event) -> None:
        click.echo(title(event), err=True)
        for name, value in kept.items():
            click.echo(clean(f"  {name}={value}", 200), err=True)
        say(HEADER)
        say(UNITS)

    def result(found: Collective) -> None:
        say(row(found))

    return Telling(result=result, skipped=lambda line: click.echo(line, err=True), joined=joined)


def write(measurement: Measurement, output: Output) -> None:
    """Everything that is asked for but the table, which was printed row by row."""
    results = measurement.results
    if output.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results), indent=2).decode())
    if output.csv:
        output.csv.write_text(as_csv(results), encoding="utf-8")
    if output.textfile:
        _replace(output.textfile, as_textfile(results, time.time()))
    if output.plot and results:
        plot(results, output.plot, title(measurement.about))


def title(event: Event) -> str:
    """What the figures are of."""
    if not event:
        return ""
    gpu = f" on {event['gpu']}, NCCL {event['nccl']}" if event["gpu"] else ""
    alone = "; nothing travels, so there is no bandwidth" if event["ranks"] == 1 else ""
    ranks = "1 rank" if event["ranks"] == 1 else f"{event['ranks']} ranks"
    return clean(f"{ranks}, {event['backend']}{gpu}{alone}", 200)


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: a collector may read it at any moment."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
