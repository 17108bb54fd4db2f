"""List, show and export the reports on this node."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from mldebug.archive import Archive, Entry
from mldebug.config import load_config
from mldebug.errors import EvidenceError, MldebugError, UsageError
from mldebug.model import Report
from mldebug.redact import clean
from mldebug.report.html import render_html
from mldebug.report.text import print_report, report_lines

SUFFIXES = (".tar.gz", ".html", ".json", ".txt")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


@click.group("reports", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
@click.pass_context
def group(context: click.Context, config: Path | None) -> None:
    """List, show and export the reports on this node.

    ID is a report's id, the beginning of one, or `latest`.
    """
    context.obj = Archive(load_config(config).agent.state_dir)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects.")
@click.pass_obj
def list_reports(archive: Archive, as_json: bool) -> None:
    """List all reports, newest first."""
    entries = archive.list()
    if as_json:
        click.echo(_pretty(entries))
        return
    console = Console()
    for line in entry_lines(entries, archive.folder):
        console.print(line, soft_wrap=True, highlight=False)


@group.command("show")
@click.argument("report_id", metavar="ID", default="latest")
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
@click.pass_obj
def show(archive: Archive, report_id: str, as_json: bool) -> None:
    """Print one report."""
    report = archive.load(report_id)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    print_report(report, Console())
    click.echo(f"\nFull report: {archive.path(report_id) / 'report.html'}")


@group.command("export")
@click.argument("report_id", metavar="ID")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, readable=False))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as an object.")
@click.pass_obj
def export(archive: Archive, report_id: str, file: Path, force: bool, as_json: bool) -> None:
    """Write one report into FILE; its name decides the form.

    .html, .json, .txt: the report; .tar.gz: all three with the evidence it rests on.
    """
    suffix = next((known for known in SUFFIXES if file.name.endswith(known)), "")
    if not suffix:
        raise UsageError(f"{file} has no known ending", f"end it in one of {', '.join(SUFFIXES)}")
    content = exported(archive, archive.load(report_id), suffix)
    try:
        with file.open("wb" if force else "xb") as stream:
            stream.write(content)
    except FileExistsError:
        raise UsageError(f"{file} exists already", "overwrite it with --force") from None
    except OSError as error:
        raise MldebugError(
            f"{file} cannot be written: {error.strerror}", "choose another place"
        ) from error
    told = {"id": report_id, "file": str(file), "bytes": len(content)}
    click.echo(_pretty(told) if as_json else f"{clean(str(file), 400)}: {len(content):,} bytes")


def entry_lines(entries: tuple[Entry, ...], folder: Path) -> Iterator[Text]:
    """Yield the list as a person reads it: one line of names, below it the sentence."""
    if not entries:
        yield Text(f"There is no report in {folder}. Take one with: mldebug dump")
    for entry in entries:
        if entry.broken:
            yield Text.assemble((entry.id, "bold"), ("  cannot be read", "red"))
            yield Text(f"    {clean(entry.broken)}", style="dim")
            continue
        job = clean(entry.job, 40)
        verdict = f"{clean(entry.verdict, 40)} ({clean(entry.confidence, 10)})"
        yield Text.assemble(
            (entry.id, "bold"), f"  {job}  ", (verdict, "red"), f"  {clean(entry.state, 20)}"
        )
        yield Text(f"    {clean(entry.sentence, 300)}")


def exported(archive: Archive, report: Report, suffix: str) -> bytes:
    """Return the content of an exported file; all of it is rendered anew from what was checked on reading."""
    forms = {
        "report.json": msgspec.json.encode(report) + b"\n",
        "report.html": render_html(report).encode(errors="replace"),
        "report.txt": "\n".join([*report_lines(report, 100), ""]).encode(errors="replace"),
    }
    if suffix != ".tar.gz":
        return forms[f"report{suffix}"]
    return _packed(report.id, forms | _evidence(archive, report.id))


def _evidence(archive: Archive, report_id: str) -> dict[str, bytes]:
    """The captures of a report; a report without any is exported without."""
    try:
        captures = archive.evidence(report_id)
    except EvidenceError:
        return {}
    named = {f"evidence/capture-{index}.json": one for index, one in enumerate(captures)}
    return {name: msgspec.json.encode(capture) for name, capture in named.items()}


def _packed(folder: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            member.mode = 0o600
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def create(options: Options) -> click.Command:
    """Build the command."""
    return group
