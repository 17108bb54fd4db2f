"""Hang a real training job on purpose and watch the agent find out who did it."""

import os
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console

from mldebug.core.errors import ExitCode, FailedCheckError, MldebugError, ToolError
from mldebug.core.plugins import NoOptions
from mldebug.core.report_model import Report
from mldebug.incidents.report.text import print_report
from mldebug_agents.support.demo.agent import DemoAgent
from mldebug_agents.support.demo.job import DemoJob, DemoPlan
from mldebug_agents.support.demo.progress import show_progress
from mldebug_agents.system.spawn import Spawner

FAULTS = {
    "sleep": "sleeps while the others wait for it",
    "stopped": "is stopped by a signal",
    "mismatch": "calls another collective than the others",
    "fifo": "reads a pipe that nobody writes",
    "loop": "computes for ever",
    "dead": "exits without a word",
    "lock": "takes a lock that it holds already",
}


@click.command("demo")
@click.option("--fault", type=click.Choice(list(FAULTS)), default="sleep", show_default=True)
@click.option("--ranks", type=click.IntRange(3, 64), default=4, show_default=True)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path, readable=False),
    help="Write report.html here too.",
)
def demo(fault: str, ranks: int, html: Path | None) -> None:
    """Start a real training job and an agent on this machine, let a fault strike one rank, and see the agent name it.

    Exit code 0: the report names the rank that was struck, and nobody else; 1: it does not.
    """
    require_torch()
    plan = DemoPlan(fault=fault, ranks=ranks, struck=ranks // 2)
    console = Console()
    with (
        Spawner() as spawner,
        tempfile.TemporaryDirectory(prefix="mldebug-demo-") as name,
        DemoAgent(spawner, Path(name)) as agent,
        DemoJob(spawner, plan, Path(name)) as job,
    ):
        say = partial(console.print, highlight=False, soft_wrap=True)
        say(f"A training job of {ranks} ranks starts (torchrun, gloo, CPU); an agent watches.")
        show_progress(job, console)
        struck_at = time.monotonic()
        say(
            f"\nRank {plan.struck} {FAULTS[fault]}. Nobody tells the agent; it finds out by itself:\n"
        )
        report = agent.follow(job.pid_of(0), console)
        took = time.monotonic() - struck_at
        page = write_html(agent.html(report), html)
    console.print()
    print_report(report, console)
    say("")
    say(f"Full report: {page}")
    code = verdict_on(report, plan)
    say(
        f"The fault struck rank {plan.struck}. The agent named rank {plan.struck}, {took:.0f} s later."
    )
    sys.exit(code)


def verdict_on(report: Report, plan: DemoPlan) -> ExitCode:
    """The exit code 0 where the report names the rank that was struck and nobody else; else raises
    MldebugError with the difference.
    """
    named = [culprit.rank for culprit in report.diagnosis.culprits]
    if named == [plan.struck]:
        return ExitCode.FINE
    who = ", ".join(f"rank {rank}" for rank in named) or "nobody"
    way_out = f"please report this as a bug, with the report {report.id}"
    raise FailedCheckError(f"rank {plan.struck} was struck, but the report names {who}", way_out)


def require_torch() -> None:
    """Raise ToolError, which says how to get PyTorch, where it is not installed. Does not import it."""
    if find_spec("torch") is None:
        raise ToolError(
            "the demo trains with PyTorch, which is not installed here",
            f"{sys.executable} -m pip install torch  # the build for the CPU will do",
        )


def write_html(text: str, wanted: Path | None) -> Path:
    """Write the page to the wanted path, or to a temporary file.

    Returns the path; raises MldebugError where it cannot be written.
    """
    if wanted is None:
        handle, name = tempfile.mkstemp(prefix="mldebug-demo-", suffix=".html")
        os.close(handle)
        wanted = Path(name)
    try:
        wanted.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MldebugError(
            f"{wanted} cannot be written: {error.strerror}", "give --html another place"
        ) from error
    return wanted


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug demo`: hang a real training job on purpose and watch the agent find out who did it."""
    return demo
