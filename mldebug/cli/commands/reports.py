"""List, show and export the reports on this node."""

import io
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.cli.durations import since_seconds
from mldebug.cli.param_types import REPORT
from mldebug.cli.repeat import looks
from mldebug.core.errors import AccessError, EvidenceError, UsageError
from mldebug.core.output_file import write_file
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.core.report_model import Report
from mldebug.core.text import aligned, typed
from mldebug.core.units import age_words
from mldebug.incidents.report_dirs import find_report, report_stores_of
from mldebug.incidents.report_entry import EVERY_REPORT, ReportEntry, ReportFilter
from mldebug.incidents.report_store import ReportStore
from mldebug.incidents.stored_evidence import QUERIED_FILE, load_evidence

# Imported where a report is shown: they are most of what a list of reports would import
TEXT, HTML = "mldebug.incidents.report.text", "mldebug.incidents.report.html"
SUFFIXES = (".tar.gz", ".html", ".json", ".txt")
FORMS = ("table", "wide", "name", "json")
LATEST = "latest"
HEADER = ("ID", "AGE", "JOB", "VERDICT", "STATE")
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Lists = tuple[list[tuple[ReportStore, tuple[ReportEntry, ...]]], list[AccessError]]


def config_option(command: _Command) -> _Command:
    """Add the option `--config` to a command of `reports`. It may stand before or after the subcommand; the last one is
    used.
    """
    kind = click.Path(path_type=Path, readable=False)
    return click.option("--config", type=kind, help="Config file.")(command)


@click.group(
    "reports",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@config_option
@click.pass_context
def group(context: click.Context, config: Path | None) -> None:
    """List, show and export the reports on this node.

    Without a command: list. ID is a report's id, the beginning of one, or `latest`.
    """
    context.obj = config
    if context.invoked_subcommand is None:
        context.invoke(list_reports)


@group.command("list")
@click.option("--since", metavar="DURATION", help="Those of the last 2h, 30m or 7d.")
@click.option("--job", metavar="JOB", help="Those of the job with this name or id.")
@click.option("--verdict", metavar="VERDICT", help="Those with this verdict.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(FORMS),
    default="wide",
    help="table: a line each; wide: with the sentence (the default); name: ids alone; json.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="How many a table shows; 0: all.",
)
@click.option("--watch", is_flag=True, help="Again every 2 s, until Ctrl-C.")
@config_option
@click.pass_obj
def list_reports(
    given: Path | None,
    config: Path | None,
    since: str | None,
    job: str | None,
    verdict: str | None,
    output: str,
    as_json: bool,
    limit: int,
    watch: bool,
) -> None:
    """List reports, newest first."""
    config = config or given
    period = None if since is None else since_seconds(since)
    console = Console()

    def look() -> tuple[ReportFilter, _Lists]:
        wanted = ReportFilter(None if period is None else time.time() - period, job, verdict)
        with progress_line("reading the reports"):
            return wanted, _list(report_stores_of(config), wanted)

    for wanted, lists in looks(look, watch, console):
        _show_list(lists, "json" if as_json else output, console, config, wanted, limit)


def _show_list(
    lists: _Lists,
    form: str,
    console: Console,
    config: Path | None,
    wanted: ReportFilter,
    limit: int,
) -> None:
    """Print the reports in one of FORMS, in a table at most `limit` of each place (0: all)."""
    listed, closed = lists
    if not listed:
        raise closed[0]
    found = (entry for _, some in listed for entry in some)
    entries = sorted(found, key=lambda entry: entry.id, reverse=True)
    if form == "json":
        click.echo(_pretty(entries))
        return
    if form == "name":
        for entry in entries:
            click.echo(entry.id)
        return
    for archive, some in listed:
        for line in entry_lines(
            some, archive.folder, config, wanted, wide=form == "wide", limit=limit
        ):
            print_line(console, line)
    for error in closed:
        print_line(console, Text(f"{error.message}: {error.way_out}"))


@group.command("show")
@click.argument("report_id", type=REPORT, metavar="[ID]", default=LATEST)
@click.option("--job", metavar="JOB", help="The newest of the job with this name or id.")
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
@config_option
@click.pass_obj
def show(
    given: Path | None, config: Path | None, report_id: str, job: str | None, as_json: bool
) -> None:
    """Print one report."""
    stores = report_stores_of(config or given)
    if job is not None:
        report_id = _newest_of(stores, job, report_id)
    archive, report = find_report(stores, report_id)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    text = import_module(TEXT)
    text.print_report(report, Console())
    click.echo(f"\nFull report: {archive.path(report.id) / 'report.html'}")


def _newest_of(stores: Sequence[ReportStore], job: str, report_id: str) -> str:
    """The id of the newest report of a job with this name, or whose id begins so. Raises UsageError where an id was given, too, and
    EvidenceError where there is none.
    """
    if report_id != LATEST:
        raise UsageError("name the report by its id or by --job, not by both", "choose one of them")
    listed, _ = _list(stores, ReportFilter(job=job))
    ids = [entry.id for _, some in listed for entry in some]
    if not ids:
        raise EvidenceError(
            f"there is no report of the job {clean(job, 60)}", "mldebug reports list"
        )
    return max(ids)


@group.command("export")
@click.argument("report_id", type=REPORT, metavar="ID")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, readable=False))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as an object.")
@config_option
@click.pass_obj
def export(
    given: Path | None,
    config: Path | None,
    report_id: str,
    file: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Write one report into FILE; its name decides the form.

    .html, .json, .txt: the report; .tar.gz: all three with the evidence it rests on.
    """
    suffix = next((known for known in SUFFIXES if file.name.endswith(known)), "")
    if not suffix:
        raise UsageError(f"{file} has no known ending", f"end it in one of {', '.join(SUFFIXES)}")
    with progress_line("packing the report"):
        archive, report = find_report(report_stores_of(config or given), report_id)
        content = exported(archive, report, suffix)
    write_file(file, (content,), force)
    written = {"id": report.id, "file": str(file), "bytes": len(content)}
    click.echo(_pretty(written) if as_json else f"{clean(str(file), 400)}: {len(content):,} bytes")


# --- where reports are -----------------------------------------------------------------------------


def _list(archives: Sequence[ReportStore], wanted: ReportFilter) -> _Lists:
    """What each holds, and why some may not be listed; the service's only where it has something."""
    listed: list[tuple[ReportStore, tuple[ReportEntry, ...]]] = []
    closed: list[AccessError] = []
    for archive in archives:
        try:
            entries = tuple(entry for entry in archive.list() if wanted.matches(entry))
        except AccessError as error:
            closed.append(error)
            continue
        if entries or archive is archives[0]:
            listed.append((archive, entries))
    return listed, closed


# --- what is printed -------------------------------------------------------------------------------


def entry_lines(
    entries: Sequence[ReportEntry],
    folder: Path,
    config: Path | None = None,
    wanted: ReportFilter = EVERY_REPORT,
    *,
    wide: bool = True,
    limit: int = 0,
) -> Iterator[Text]:
    """The list of reports for people: a table (with `wide` also each report's sentence), then the folder they are in. `wanted`:
    the filter that was applied. `limit`: the most that are shown; 0: all.
    """
    place = clean(str(folder), 400)
    if not entries and wanted != EVERY_REPORT:
        yield Text(f"No report in {place} is like that. All: {typed('reports', config)}")
        return
    if not entries:
        yield Text(
            f"There is no report in {place}. Take one with: {typed('dump', config)}", no_wrap=True
        )
        return
    shown = entries[:limit] if limit else entries
    rows = [_row(entry, time.time()) for entry in shown]
    header, *cells = aligned([HEADER, *rows])
    yield Text(header, style="dim", no_wrap=not wide)
    for entry, words in zip(shown, cells, strict=True):
        line = Text(words, no_wrap=not wide)
        line.stylize("bold", 0, len(entry.id))
        yield line
        if wide or entry.broken:
            sentence = f"cannot be read: {entry.broken}" if entry.broken else entry.sentence
            yield Text(f"    {clean(sentence, 300)}", style="dim" if entry.broken else "")
    if older := len(entries) - len(shown):
        yield Text(f"… and {older:,} older: --limit 0 lists all", style="dim")
    yield Text(f"\nThey are in {place}. Read the newest:")
    yield Text(f"  {typed('reports show', config)}", no_wrap=True)


def _row(entry: ReportEntry, now: float) -> tuple[str, ...]:
    age = "-" if entry.at is None else age_words(now - entry.at)
    if entry.broken:
        return (entry.id, age, "-", "-", "broken")
    # One that somebody asked for is closed by nobody: "open" would be said of it for ever.
    state = "asked for" if entry.kind == "manual" else clean(entry.state, 20)
    verdict = "not stuck" if entry.works else clean(entry.verdict, 40)
    verdict = f"{verdict} ({clean(entry.confidence, 10)})"
    return (entry.id, age, clean(entry.job, 40), verdict, state)


def exported(archive: ReportStore, report: Report, suffix: str) -> bytes:
    """The bytes of a report exported as `suffix` (.json, .html, .txt, or .tar.gz with all three and the evidence), rendered anew
    from the checked report.
    """
    text, html = import_module(TEXT), import_module(HTML)
    forms: dict[str, bytes] = {
        "report.json": msgspec.json.encode(report) + b"\n",
        "report.html": html.render_html(report).encode(errors="replace"),
        "report.txt": "\n".join([*text.report_lines(report, 100), ""]).encode(errors="replace"),
    }
    if suffix != ".tar.gz":
        return forms[f"report{suffix}"]
    return _packed(report.id, forms | _evidence(archive, report.id))


def _evidence(archive: ReportStore, report_id: str) -> dict[str, bytes]:
    """The captures of a report, and how its job ended; a report without any is exported without."""
    try:
        recorded = load_evidence(archive.path(report_id))
    except (EvidenceError, AccessError):
        return {}
    named: dict[str, msgspec.Struct] = {
        f"evidence/capture-{index:04d}.json": one for index, one in enumerate(recorded.captures, 1)
    }
    if recorded.exit is not None:
        named["evidence/ending-1.json"] = recorded.exit
    if recorded.queried is not None:
        named[f"evidence/{QUERIED_FILE}"] = recorded.queried
    return {name: msgspec.json.encode(one) for name, one in named.items()}


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


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug reports`: list, show and export the reports on this node."""
    return group
