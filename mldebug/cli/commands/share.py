"""Write a report into one file that can be sent to others."""

from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from mldebug.cli.param_types import REPORT
from mldebug.core.output_file import write_file
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.report_model import Report
from mldebug.incidents.pseudonyms import Pseudonyms
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report_dirs import find_report, report_stores_of


@click.command("share")
@click.argument("report_id", type=REPORT, metavar="ID", default="latest")
@click.option("--redact", is_flag=True, help="Replace names of users, nodes and addresses by made-up ones; leave out source and log lines.")  # fmt: skip
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path, readable=False),
    help="The file; mldebug-ID.html by default.",
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(report_id: str, redact: bool, out: Path | None, force: bool, config: Path | None) -> None:  # fmt: skip
    """Write a report into one file that can be sent to others.

    It opens in any browser, without a network. ID is a report's id, the beginning of one, or `latest`. Nothing is
    sent anywhere.
    """
    _, report = find_report(report_stores_of(config), report_id)
    shown = redacted(report) if redact else report
    file = out or Path(f"mldebug-{shown.id}.html")
    content = render_html(shown).encode(errors="replace")
    write_file(file, (content,), force)
    click.echo(
        f"{clean(str(file), 400)}: {len(content) / 1024:,.0f} KiB; nothing was sent anywhere"
    )
    if redact:
        click.echo(
            "Look through it before you send it: errors that it quotes stay, and names that cannot be recognised."
        )
    else:
        click.echo("It holds names of users, nodes and files, source and log lines: --redact replaces or leaves them out.")  # fmt: skip


def redacted(report: Report) -> Report:
    """The report with made-up names and without lines of sources and logs, in which anything may stand.

    The error that a diagnosis quotes stays: without it an end says nothing.
    """
    ranks = tuple(replace(one, source=None, log=(), trace=()) for one in report.ranks)
    plain = msgspec.to_builtins(replace(report, ranks=ranks))
    names = Pseudonyms()
    names.learn("user", report.job.user)
    names.learn("node", report.node, *report.job.nodes)
    names.learn_from(plain)
    return msgspec.convert(names.value(plain), Report)


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug share`: write a report into one file that can be sent to others."""
    return command
