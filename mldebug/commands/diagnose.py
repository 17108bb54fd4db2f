"""Judge a report's evidence, or a folder of py-spy dumps."""

import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console

from mldebug.archive import load_captures
from mldebug.diagnosis import diagnose
from mldebug.errors import EvidenceError, ExitCode, MldebugError
from mldebug.evidence import captures_from_dumps
from mldebug.model import NodeCapture, Report, Stall
from mldebug.report.build import build_report
from mldebug.report.html import render_html
from mldebug.report.text import print_report

MAX_WORLD = 1_000_000
MAX_TIME = 4e9  # unix seconds
DAMAGED = "this file is damaged or made up"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


@click.command("diagnose")
@click.argument("directory", type=click.Path(path_type=Path, readable=False))
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path, readable=False),
    help="Write report.html here.",
)
def command(directory: Path, as_json: bool, html: Path | None) -> None:
    """Judge recorded evidence again.

    DIRECTORY is the folder of a report, its evidence folder, or a folder of `py-spy dump` outputs (text or JSON)
    whose file names end in the rank: rank0.txt, dump-17.json.
    """
    captures = read_evidence(directory)
    report = judge(captures)
    if html:
        _write(html, render_html(report))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        print_report(report, Console())
    sys.exit(ExitCode.FOUND if diagnose(captures).stalled else ExitCode.FINE)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MldebugError(
            f"{path} cannot be written: {error.strerror}", "give --html another place"
        ) from error


def read_evidence(directory: Path) -> tuple[NodeCapture, ...]:
    """Captures first; a folder without any is taken as a folder of py-spy dumps."""
    if not directory.is_dir():
        what = "is no folder" if directory.exists() else "does not exist"
        raise EvidenceError(
            f"{directory} {what}", "give the folder of a report: mldebug reports list"
        )
    try:
        return checked(load_captures(directory))
    except EvidenceError:
        dumps = captures_from_dumps(directory)
        if not dumps:
            raise
        return dumps


def checked(captures: tuple[NodeCapture, ...]) -> tuple[NodeCapture, ...]:
    """Refuse evidence whose numbers cannot be."""
    for capture in captures:
        highest = max((rank.identity.rank for rank in capture.ranks), default=0)
        if not highest < capture.job.world_size <= MAX_WORLD:
            raise EvidenceError(
                f"a capture says {capture.job.world_size} ranks and shows rank {highest}", DAMAGED
            )
        if not 0 <= capture.taken_at < MAX_TIME:
            raise EvidenceError(
                f"a capture was taken at {capture.taken_at:g}, which is no time", DAMAGED
            )
    return captures


def judge(captures: tuple[NodeCapture, ...]) -> Report:
    """Build the report that these captures give today; its times are those of the captures."""
    taken = min(capture.taken_at for capture in captures)
    return build_report(
        diagnose(captures),
        captures,
        kind="manual",
        trigger="manual",
        detected_at=taken,
        reported_at=taken,
        stall=Stall(timeout_seconds=None, why="recorded evidence, judged again"),
        versions=captures[0].versions,
    )


def create(options: Options) -> click.Command:
    """Build the command."""
    return command
