"""Results of collectives as they come, and in files at the end."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from mldebug.errors import MldebugError, UsageError
from mldebug.probing.collectives import Collective
from mldebug.probing.csvtext import as_csv
from mldebug.probing.rows import HEADER, UNITS, row
from mldebug.probing.textfile import as_textfile
from mldebug.redact import clean
from mldebug_agents.probing.hearing import About
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

    def joined(about: About) -> None:
        click.echo(title(about), err=True)
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
        with _writing(output.csv):
            output.csv.write_text(as_csv(results), encoding="utf-8")
    if output.textfile:
        with _writing(output.textfile):
            _replace(output.textfile, as_textfile(results, time.time()))
    if output.plot and results:
        with _writing(output.plot):
            plot(results, output.plot, title(measurement.about))


def check_places(output: Output) -> None:
    """Raise UsageError before anything is measured where a file could not be written."""
    for path in filter(None, (output.csv, output.plot, output.textfile)):
        place = path if path.exists() and path != output.textfile else path.parent
        if not os.access(place, os.W_OK):
            raise UsageError(
                f"{path} cannot be written", "name a file in a folder that is there, and yours"
            )


def title(about: About) -> str:
    """What the figures are of."""
    if not about.ranks:
        return ""
    gpu = f" on {about.gpu}, NCCL {about.nccl}" if about.gpu else ""
    alone = "; nothing travels, so there is no bandwidth" if about.ranks == 1 else ""
    ranks = "1 rank" if about.ranks == 1 else f"{about.ranks} ranks"
    return clean(f"{ranks}, {about.backend}{gpu}{alone}", 200)


def _replace(path: Path, text: str) -> None:
    """Whole or not at all, and readable for a collector of another user, who may read it at any moment."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # matplotlib does not know every kind of picture
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise MldebugError(f"{path} cannot be written: {why}", "name another place") from None
