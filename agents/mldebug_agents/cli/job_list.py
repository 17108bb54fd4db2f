"""The options of `mldebug status` that choose jobs and a form, and what is printed of the chosen ones."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from mldebug.cli.console import Console, print_line
from mldebug.cli.durations import since_seconds
from mldebug.cli.param_types import JOB
from mldebug.core.errors import UsageError
from mldebug.core.model import MeasuredData
from mldebug.status.job_table import JobFilter, JobRow, table_lines

FORMS = ("table", "wide", "name", "json")
WIDE = "wide"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class JobListOptions(MeasuredData, frozen=True, kw_only=True):
    """The options of a command that lists jobs: its form, and which jobs."""

    form: str = WIDE
    since: str | None = None
    job: str | None = None
    verdict: str | None = None
    watch: bool = False

    def wanted(self) -> JobFilter:
        """The filter, as of now. Raises UsageError for a `--since` that is no time."""
        after = None if self.since is None else time.time() - since_seconds(self.since)
        return JobFilter(started_after=after, job=self.job, verdict=self.verdict)

    def refuse(self, others: str) -> None:
        """Raise UsageError where one of these was given beside options that list no jobs of this node."""
        if self != JobListOptions(form="json" if self.form == "json" else WIDE):
            raise UsageError(f"-o, --since, --job, --verdict and --watch do not go with {others}", "leave one out")  # fmt: skip


def job_list_options(command: _Command) -> _Command:
    """Add the options to a command: `output`, `since`, `job`, `verdict`, `watch`."""
    form = click.Choice(FORMS)
    for option in reversed(
        (
            click.option("--since", metavar="DURATION", help="Jobs started in the last 2h, 30m or 7d."),
            click.option("--job", type=JOB, metavar="JOB", help="The job with this name or id."),
            click.option("--verdict", metavar="VERDICT", help="Jobs with an open incident of this verdict."),
            click.option("-o", "--output", type=form, default=WIDE, help="table: a line each; wide: all of it (the default); name: ids alone; json."),
            click.option("--watch", is_flag=True, help="Again every 2 s, until Ctrl-C."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def show_jobs(
    rows: Sequence[JobRow], options: JobListOptions, node: str, now: float, console: Console
) -> None:
    """Print the jobs as a table, or their ids alone. `now`: unix time."""
    if options.form == "name":
        for row in rows:
            click.echo(row.job.id)
        return
    if not rows:
        which = "" if options.wanted() == JobFilter() else " is like that"
        console.print(f"No training job on {node}{which}", highlight=False, markup=False)
        return
    for line in table_lines(rows, now):
        print_line(console, line)
