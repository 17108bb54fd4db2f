"""Show what works here as this user, and how to get the rest."""

import os
import socket
import sys
import time
from functools import partial
from pathlib import Path

import click
import msgspec
from rich.table import Table
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import ExitCode
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.stacks.pyspy import find_binary
from mldebug_agents.hardware.one_shot import OneShotReader
from mldebug_agents.support.doctor.checks import OWN_DUMP, CheckEnvironment, examine
from mldebug_agents.support.doctor.gpu_lines import gpu_lines
from mldebug_agents.support.doctor.gpus import GpuExamination, examined
from mldebug_agents.support.doctor.rows import DoctorCheck
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.web.client import ask_nearest

STYLES = {"ok": "green", "limited": "yellow", "missing": "bold red"}
FOR_MORE = frozenset(
    (
        "capabilities",
        "other users' jobs",
        "/proc",
        "kernel log",
        "kernel stacks",
        "wchan",
        "pystack",
        "clock",
    )
)
"""Checks that an ordinary user's own jobs do not need: what they find is for the node's admins, or one more detail of a report."""
MAX_WIDTH = 100
GPU_SECONDS = 20.0  # for all reads; the first may load firmware
GPU_BETWEEN = 1.0  # seconds between two full reads


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `mldebug doctor`: all checks. `works`: jobs of this user can be dumped here."""

    node: str
    uid: int
    works: bool
    checks: tuple[DoctorCheck, ...]


@click.command("doctor")
@click.option("--gpus", is_flag=True, help="Examine the GPUs and the kernel log instead.")
@click.option("--json", "as_json", is_flag=True, help="Print an object with all checks.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(gpus: bool, as_json: bool, config: Path | None) -> None:
    """Show what works on this node as this user, and how to get the rest.

    Exit code 0: `mldebug dump` works for this user's own jobs; 3: it does not. With --gpus 1: a GPU or the node is
    unhealthy; 3: there is no NVIDIA library.
    """
    settings = load_config(config)
    if gpus:
        sys.exit(check_gpus(settings, as_json, here_only=config is not None))
    chosen = str(settings.capture.py_spy)
    trying = progress_line("trying what works here")
    with trying, Spawner() as spawner, Reader(spawner) as reader:
        world = CheckEnvironment(
            reader=reader,
            starter=spawner,
            py_spy=find_binary() if chosen == "auto" else chosen,
            state_dir=settings.agent.state_dir,
            asleep=spawner.helper_pid,
        )
        found = sum_up(tuple(examine(world)))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        show(found, Console())
    sys.exit(ExitCode.FINE if found.works else ExitCode.MISSING)


def check_gpus(settings: Config, as_json: bool, *, here_only: bool) -> ExitCode:
    """Check the GPUs and the kernel log, print the result as a table or JSON, and return the exit code.

    `here_only`: ask only the agent of the configured state dir, not the node's service.
    """
    state_dir = settings.agent.state_dir
    with progress_line("reading the GPUs"), open_tools(settings) as tools:
        ask = partial(ask_nearest, state_dir, here_only=here_only)
        look = OneShotReader(
            tools.context,
            tools.gpus,
            tools.capture.finder.find(),
            GPU_SECONDS,
            lambda: ask().answer.snapshot,
            alone=True,
            between=GPU_BETWEEN,
        )
        overview = look.take()
    found = examined(overview, look.agent_snapshot, os.geteuid())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        show_gpus(found, Console(), time.time())
    return found.code


def show_gpus(found: GpuExamination, console: Console, now: float) -> None:
    """Print the checks as a table, then the state of the GPUs. `now`: unix time."""
    who = "root" if found.uid == 0 else f"uid {found.uid}"
    console.print(Text(f"GPUs of {clean(found.node, 64)}, as {who}\n", style="bold"))
    print_checks(found.checks, console)
    for line in gpu_lines(found, now):
        print_line(console, line, prose=True)


def sum_up(checks: tuple[DoctorCheck, ...]) -> Examination:
    """The checks, with the node and user for which they hold."""
    works = all(check.state == "ok" for check in checks if check.name == OWN_DUMP)
    return Examination(node=socket.gethostname(), uid=os.geteuid(), works=works, checks=checks)


def show(found: Examination, console: Console) -> None:
    """Print the verdict, then the checks: those for one's own jobs, then what only more evidence and others' jobs need."""
    width = min(console.width, MAX_WIDTH)
    mark, style = ("✔", "bold green") if found.works else ("✘", "bold red")
    console.print(Text(f"{mark} {verdict(found)}", style=style), highlight=False, width=width)
    own = tuple(check for check in found.checks if check.name not in FOR_MORE)
    more = tuple(check for check in found.checks if check.name in FOR_MORE)
    for title, checks in (
        ("For your own jobs", own),
        ("For other users' jobs, and for more evidence", more),
    ):
        if checks:
            console.print(Text(f"\n{title}", style="bold"), highlight=False)
            print_checks(checks, console)


def print_checks(checks: tuple[DoctorCheck, ...], console: Console) -> None:
    """Print the checks as a table."""
    width = min(console.width, MAX_WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, width=width)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for check in checks:
        meaning = Text(clean(check.meaning, 300))
        if check.state != "ok" and check.way_out:
            meaning.append(f"\n→ {clean(check.way_out, 500)}", style="dim")
        table.add_row(Text(check.name), Text(check.state, style=STYLES[check.state]), meaning)
    console.print(table, highlight=False)


def verdict(found: Examination) -> str:
    """The first sentence of `mldebug doctor`: whether `mldebug dump` works for this user's jobs."""
    if not found.works:
        return "`mldebug dump` does not work for your jobs: see the lines marked missing."
    return "`mldebug dump` works for your jobs."


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug doctor`: show what works here as this user, and how to get the rest."""
    return command
