"""Hang a real training job on purpose and find out who did it."""

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec
from rich.console import Console

from mldebug.config import load_config
from mldebug.errors import ExitCode, MldebugError, ToolError
from mldebug.model import Report
from mldebug.report.text import print_report
from mldebug_agents.demo.job import DemoJob, Plan
from mldebug_agents.demo.progress import show_progress
from mldebug_agents.manual import Taken, choose, take
from mldebug_agents.workbench import Workbench

FAULTS = {
    "sleep": "sleeps while the others wait for it",
    "stopped": "is stopped by a signal",
    "mismatch": "calls another collective than the others",
    "fifo": "reads a pipe that nobody writes",
    "loop": "computes for ever",
    "dead": "exits without a word",
    "lock": "takes a lock that it holds already",
}


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


@click.command("demo")
@click.option("--fault", type=click.Choice(list(FAULTS)), default="sleep", show_default=True)
@click.option("--ranks", type=click.IntRange(3, 64), default=4, show_default=True)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write report.html here too."
)
def demo(fault: str, ranks: int, html: Path | None) -> None:
    """Start a real training job on this machine, let a fault strike one rank, and find out who it was.

    Exit code 0: the report names the rank that was struck, and nobody else; 1: it does not.
    """
    require_torch()
    plan = Plan(fault=fault, ranks=ranks, struck=ranks // 2)
    console = Console()
    with (
        Workbench(load_config(None)) as bench,
        tempfile.TemporaryDirectory(prefix="mldebug-demo-") as folder,
        DemoJob(bench.spawner, plan, Path(folder)) as job,
    ):
        console.print(
            f"A training job of {ranks} ranks starts (torchrun, gloo, CPU).", highlight=False
        )
        show_progress(job, console)
        console.print(
            f"\nRank {plan.struck} {FAULTS[fault]}. What does mldebug say?\n", highlight=False
        )
        taken = capture_and_report(bench, job.launcher_pid)
    print_report(taken.report, console)
    console.print(f"\nFull report: {write_html(taken, html)}", highlight=False, soft_wrap=True)
    sys.exit(verdict_on(taken.report, plan))


def capture_and_report(bench: Workbench, pid: int) -> Taken:
    """What `mldebug dump --pid PID` does: discover, capture, judge, write the report."""
    found = bench.finder.find()
    (job,) = choose(found, pid, None)
    return take(bench, job, found)


def verdict_on(report: Report, plan: Plan) -> ExitCode:
    """Compare the named culprits with the rank that was struck, and say where they differ."""
    named = [culprit.rank for culprit in report.diagnosis.culprits]
    if named == [plan.struck]:
        return ExitCode.FINE
    who = ", ".join(f"rank {rank}" for rank in named) or "nobody"
    way_out = f"please report this as a bug, with the report {report.id}"
    raise MldebugError(f"rank {plan.struck} was struck, but the report names {who}", way_out)


def require_torch() -> None:
    """Say how to get PyTorch where it is missing, without importing it."""
    if find_spec("torch") is None:
        raise ToolError(
            "the demo trains with PyTorch, which is not installed here",
            "pip install 'mldebug[demo]'",
        )


def write_html(taken: Taken, wanted: Path | None) -> Path:
    """Return where the HTML lies: where it was wanted, in the archive, or else in a temporary file."""
    if wanted is None and taken.html_path is not None:
        return taken.html_path
    if wanted is None:
        handle, name = tempfile.mkstemp(prefix="mldebug-demo-", suffix=".html")
        os.close(handle)
        wanted = Path(name)
    try:
        wanted.write_text(taken.html, encoding="utf-8")
    except OSError as error:
        raise MldebugError(
            f"{wanted} cannot be written: {error.strerror}", "give --html another place"
        ) from error
    return wanted


def create(options: Options) -> click.Command:
    """Build the command."""
    return demo
