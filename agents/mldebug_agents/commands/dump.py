"""Capture all ranks here now and name the culprit."""

import sys
from pathlib import Path

import click
import msgspec

from mldebug.config import Config, load_config
from mldebug.console import Console
from mldebug.errors import ExitCode, MldebugError, UsageError
from mldebug.report.text import print_report
from mldebug.settings.units import parse_duration
from mldebug_agents.manual import STORE_TIMEOUT, Taken, choose, look_beside, take, within
from mldebug_agents.workbench import Workbench

MAX_WATCH = 60.0


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


@click.command("dump")
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    help="The job of this process (a rank, a worker or a launcher).",
)
@click.option("--job", help="The job with this id or name; default: every job on this node.")
@click.option(
    "--native/--no-native",
    default=None,
    help="C frames of all ranks (each stands still for 0.03 to 1 s).",
)
@click.option(
    "--watch",
    metavar="DURATION",
    help="How long to look for movement, 2s by default; 0s: one look.",
)
@click.option("--json", "as_json", is_flag=True, help="Print report.json, one line per job.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path, readable=False),
    help="Write report.html here too.",
)
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def dump(
    pid: int | None,
    job: str | None,
    native: bool | None,
    watch: str | None,
    as_json: bool,
    html: Path | None,
    config: Path | None,
) -> None:
    """Capture all ranks here now and name the culprit.

    Exit code 0: nothing is stuck; 1: a stall was found; 3: this user may not look at the job.
    """
    with Workbench(adjusted(load_config(config), native, watch)) as bench:
        found = bench.finder.find()
        jobs = choose(found, pid, job)
        if html and len(jobs) > 1:
            raise UsageError(
                f"--html takes one job, {len(jobs)} run here", f"add --job {jobs[0].id}"
            )
        beside = look_beside(bench, found, here_only=config is not None)
        taken = [take(bench, one, found, beside) for one in jobs]
    for one in taken:
        _show(one, as_json, html)
    sys.exit(ExitCode.FOUND if any(one.judgement.stalled for one in taken) else ExitCode.FINE)


def adjusted(config: Config, native: bool | None, watch: str | None) -> Config:
    """The config with what the command line says over it."""
    capture = config.capture
    if native is not None:
        capture = msgspec.structs.replace(capture, native="always" if native else "never")
    if watch is not None:
        try:
            seconds = parse_duration(watch)
            if not 0 <= seconds <= MAX_WATCH:
                raise ValueError(f"it may be 0s to {MAX_WATCH:g}s")
            deadline = max(capture.deadline, seconds + 30.0)
            capture = msgspec.structs.replace(capture, watch=seconds, deadline=deadline)
        except ValueError as error:
            raise UsageError(f"--watch {watch!r}: {error}", "write it like 2s or 1m") from error
    return msgspec.structs.replace(config, capture=capture)


def _show(taken: Taken, as_json: bool, html: Path | None) -> None:
    """The answer first, then what became of the files."""
    if as_json:
        click.echo(msgspec.json.encode(taken.report).decode())
    else:
        print_report(taken.report, Console())
    if taken.trouble:
        click.echo(f"mldebug: {taken.trouble}", err=True)
    place, why = (
        within(STORE_TIMEOUT, lambda: _copy(taken.html, html)) if html else (taken.html_path, "")
    )
    if place and not as_json:
        click.echo(f"\nFull report: {place}")
    if why:
        raise MldebugError(f"{html} cannot be written: {why}", "give --html another place")


def _copy(text: str, html: Path) -> Path:
    html.write_text(text, encoding="utf-8")
    return html


def create(options: Options) -> click.Command:
    """Build the command."""
    return dump
