"""Show what works here as this user, and how to get the rest."""

import os
import socket
import sys
from pathlib import Path

import click
import msgspec
from rich.table import Table
from rich.text import Text

from mldebug.config import load_config
from mldebug.console import Console
from mldebug.errors import ExitCode
from mldebug.redact import clean
from mldebug_agents.capturing.pyspy import find_binary
from mldebug_agents.doctor.checks import OWN_DUMP, World, examine
from mldebug_agents.doctor.rows import Check
from mldebug_agents.reader import Reader
from mldebug_agents.spawn import Spawner

STYLES = {"ok": "green", "limited": "yellow", "missing": "bold red"}
MAX_WIDTH = 100


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All rows; `works` says whether own jobs can be dumped here."""

    node: str
    uid: int
    works: bool
    checks: tuple[Check, ...]


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print an object with all checks.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(as_json: bool, config: Path | None) -> None:
    """Show what works on this node as this user, and how to get the rest.

    Exit code 0: `mldebug dump` works for this user's own jobs; 3: it does not.
    """
    settings = load_config(config)
    chosen = str(settings.capture.py_spy)
    with Spawner() as spawner, Reader(spawner) as reader:
        world = World(
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


def sum_up(checks: tuple[Check, ...]) -> Examination:
    """Put the rows together with where and as whom they were taken."""
    works = all(check.state == "ok" for check in checks if check.name == OWN_DUMP)
    return Examination(node=socket.gethostname(), uid=os.geteuid(), works=works, checks=checks)


def show(found: Examination, console: Console) -> None:
    """Print the rows as a table with one closing sentence."""
    width = min(console.width, MAX_WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, width=width)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for check in found.checks:
        meaning = Text(clean(check.meaning, 300))
        if check.state != "ok" and check.way_out:
            meaning.append(f"\n→ {clean(check.way_out, 500)}", style="dim")
        table.add_row(Text(check.name), Text(check.state, style=STYLES[check.state]), meaning)
    console.print(table, highlight=False)
    console.print(Text("\n" + verdict(found)), highlight=False, width=width)


def verdict(found: Examination) -> str:
    """Return the sentence that a tired person needs."""
    who = "root" if found.uid == 0 else f"uid {found.uid}"
    if not found.works:
        return f"mldebug dump does not work here as {who}: see the lines marked missing."
    less = sum(check.state != "ok" for check in found.checks)
    rest = (
        f"{less} of {len(found.checks)} checks cost some evidence."
        if less
        else "Nothing is missing."
    )
    return f"mldebug dump works here for {who}'s own jobs. {rest}"


def create(options: Options) -> click.Command:
    """Build the command."""
    return command
