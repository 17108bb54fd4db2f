"""Have a job save, or save and stop: all ranks at one step."""

import getpass
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import FOLDER, JOB
from mldebug.config.schema import load_config
from mldebug.core.errors import ExitCode, UsageError
from mldebug.core.model import Job
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.units import duration_words, parse_duration
from mldebug.jobs.switches import (
    KILL,
    SAVE,
    VARIABLE,
    SwitchState,
    effect_words,
    holds,
    state_lines,
)
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.incidents.manual import choose
from mldebug_agents.jobs.hook.switches import SwitchRequest, ask, switch_request

HOLDS = "24h"
NOBODY = "nobody asks for switches in {}: its script makes no `mldebug_training.Switches`"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class SwitchFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one folder of switches, as `--json` prints it."""

    job: str = ""  # id, where the job was found
    found: SwitchState | None = None
    note: str = ""


def _place(command: _Command) -> _Command:
    """The options that say which job."""
    for option in (
        click.option(
            "--config", type=click.Path(path_type=Path, readable=False), help="Config file."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print an object."),
        click.option(
            "--folder", type=FOLDER, help=f"The folder of its switches; default: ${VARIABLE}."
        ),
        click.option(
            "--run", type=JOB, help="The job with this id or name; default: the only one here."
        ),
    ):
        command = option(command)
    return command


@click.group("switch")
def group() -> None:
    """Have a job save, or save and stop: all ranks at one step.

    For jobs whose loop asks: `mldebug_training.Switches().poll()` after each step.
    """


@group.command("kill")
@click.option("--for", "duration", default=HOLDS, show_default=True, metavar="DURATION", help="How long it holds.")  # fmt: skip
@click.option("--clear", is_flag=True, help="Take it back.")
@_place
def kill(duration: str, clear: bool, run: str | None, folder: str | None, as_json: bool, config: Path | None) -> None:  # fmt: skip
    """Have all ranks save and stop at one step.

    Until --for is over it also stops jobs that start with this switch folder (the rest of a job array): in `at_start`, or
    in their first steps.
    """
    _turn(KILL, clear, _seconds(duration), SwitchSelection(run, folder, config), as_json)


@group.command("save")
@click.option("--clear", is_flag=True, help="Take it back.")
@_place
def save(clear: bool, run: str | None, folder: str | None, as_json: bool, config: Path | None) -> None:  # fmt: skip
    """Have all ranks save at one step, once, and go on."""
    _turn(SAVE, clear, None, SwitchSelection(run, folder, config), as_json)


@group.command("status")
@_place
def status(run: str | None, folder: str | None, as_json: bool, config: Path | None) -> None:
    """Show the switches, and who asks for them.

    Exit code 1: a kill switch is set. In a job's script: `mldebug switch status --folder DIR || exit 0`
    """
    now = time.time()
    places = list(_look(SwitchSelection(run, folder, config)))
    if as_json:
        _print_json(places)
    else:
        _print_lines(line for place in places for line in _lines(place, now))
    killed = any(one.found and holds(one.found.kill, now) for one in places)
    sys.exit(ExitCode.FOUND if killed else ExitCode.FINE)


class SwitchSelection(msgspec.Struct, frozen=True):
    """Whose switches a command means: of a job (`run`), in a folder, or in the folder that a
    variable of this shell names.
    """

    run: str | None
    folder: str | None
    config: Path | None

    @property
    def place(self) -> str:
        """The absolute path of the folder of switches: the one that was named or, where neither a job nor a folder was,
        that of the variable MLDEBUG_SWITCH_DIR of this shell. "" where the job named by `run` has to say it.

        Raises UsageError where both a job and a folder are named.
        """
        if self.run and self.folder:
            raise UsageError("use --run or --folder, not both", "give one of them")
        named = self.folder or ("" if self.run else os.environ.get(VARIABLE, ""))
        return os.path.abspath(named) if named else ""


def _turn(
    name: str, clear: bool, seconds: float | None, wanted: SwitchSelection, as_json: bool
) -> None:
    """Set it or take it back, and say what comes of it."""
    now = time.time()
    with open_tools(load_config(wanted.config)) as tools:
        job, order = _one(tools, wanted)
        order = msgspec.structs.replace(
            order,
            verb="clear" if clear else "set",
            name=name,
            until=None if seconds is None else now + seconds,
            by=_user(),
        )
        found = ask(tools.context.spawner, order)
    if as_json:
        _print_json([SwitchFolder(job=job, found=found)])
        return
    state = "no longer set" if clear else "set"
    lines = [f"The {name} switch is {state}: {clean(found.folder)}/{name}"]
    if not clear:
        lines.append(effect_words(name, found.polled, now))
    if name == KILL and seconds and not clear:
        held = duration_words(seconds)
        lines.append(
            f"It holds for {held}; whatever starts with this folder until then stops at once."
        )
    _print_lines(lines)


def _look(wanted: SwitchSelection) -> Iterator[SwitchFolder]:
    with open_tools(load_config(wanted.config)) as tools:
        if wanted.place:
            yield SwitchFolder(
                found=ask(tools.context.spawner, SwitchRequest(verb="look", folder=wanted.place))
            )
            return
        for job in choose(tools.capture.finder.find(), None, wanted.run):
            order = switch_request(job, tools.context.host, tools.context.reader)
            if order is None:
                yield SwitchFolder(job=job.id, note=NOBODY.format(_named(job)))
            else:
                yield SwitchFolder(job=job.id, found=ask(tools.context.spawner, order))


def _one(tools: NodeTools, wanted: SwitchSelection) -> tuple[str, SwitchRequest]:
    """The one place to turn a switch in."""
    if wanted.place:
        return "", SwitchRequest(verb="look", folder=wanted.place)
    jobs = choose(tools.capture.finder.find(), None, wanted.run)
    if len(jobs) > 1:
        have = ", ".join(_named(job) for job in jobs[:8])
        raise UsageError(f"{len(jobs)} jobs run here: {have}", f"add --run {jobs[0].id}")
    order = switch_request(jobs[0], tools.context.host, tools.context.reader)
    if order is None:
        why = NOBODY.format(_named(jobs[0]))
        raise UsageError(why, "end it by its scheduler (scancel, kubectl delete), or its launcher")
    return jobs[0].id, order


def _named(job: Job) -> str:
    return f"{clean(job.id, 40)} ({clean(job.name, 40)})"


def _lines(place: SwitchFolder, now: float) -> Iterator[str]:
    if place.job:
        yield f"job     {clean(place.job, 40)}"
    yield from state_lines(place.found, now) if place.found else [place.note]


def _print_lines(lines: Iterator[str] | list[str]) -> None:
    console = Console()
    for line in lines:
        named = line.startswith(("folder ", "The "))  # a path stays in one piece
        print_line(console, Text(line, no_wrap=named), prose=True)


def _print_json(places: list[SwitchFolder]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode({"switches": places}), indent=2).decode())


def _seconds(duration: str) -> float:
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise UsageError(f"--for {duration!r}: {error}", "write it like 24h") from error
    if seconds <= 0:
        raise UsageError(f"--for {duration}: it must be longer than 0 s", "write it like 24h")
    return seconds


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug switch`: have a job save, or save and stop: all ranks at one step."""
    return group
