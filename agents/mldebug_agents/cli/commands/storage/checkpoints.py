"""Say which checkpoints in a folder are whole."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import FOLDER
from mldebug.core.errors import AccessError, EvidenceError, ExitCode, MldebugError
from mldebug.core.plugins import NoOptions, create_all
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.core.units import duration_words, size_words
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.state import SeriesState
from mldebug_agents.storage.checkpoints.one_shot import read_checkpoints
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner

WORDS = {
    Completeness.COMPLETE: "whole",
    Completeness.INCOMPLETE: "not whole",
    Completeness.WRITING: "being written",
    Completeness.UNKNOWN: "cannot tell",
}


@click.command("checkpoints")
@click.argument("directory", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(directory: str, as_json: bool) -> None:
    """Say which checkpoints in a folder are whole, and what is wrong with others.

    DIRECTORY is a folder of a run, of its checkpoints, or one checkpoint. No agent is needed and nothing is loaded: names, sizes, indexes and
    the ends of files are compared with what the framework's layout promises. A flipped bit in a tensor stays unseen.

    Exit code 0: at least one is whole; 1: none is; 2: there is no checkpoint.
    """
    folder = Path(directory).expanduser().resolve()
    reading = progress_line("reading the checkpoints")
    with reading, Spawner() as spawner, Reader(spawner) as reader:
        states, trouble = read_checkpoints(
            reader, str(folder), create_all("checkpoints"), time.time()
        )
    if not states:
        raise _none(folder, trouble)
    whole = any(state.last for state in states)
    if as_json:
        found = {"whole": whole, "trouble": trouble, "series": states}
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        console = Console()
        for line in lines(states, trouble, time.time()):
            print_line(console, line)
    sys.exit(ExitCode.FINE if whole else ExitCode.FOUND)


def _none(folder: Path, trouble: str) -> MldebugError:
    """Why there is no checkpoint; `trouble`: why the folder was not read, "" where it was."""
    named, way_out = clean(str(folder)), "name the folder that the framework saves into"
    if trouble == "permission denied":
        return AccessError(f"{named} cannot be read: {trouble}", "ask as its owner, or as root")
    if trouble == "no such file":
        why = "is a file, and no folder" if folder.is_file() else "does not exist"
        return EvidenceError(f"{named} {why}", way_out)
    why = f": {trouble}" if trouble else ""
    return EvidenceError(
        f"{named} holds no checkpoint that mldebug recognises{why}",
        f"{way_out}; docs/checkpoints.md has the layouts",
    )


def lines(states: tuple[SeriesState, ...], trouble: str, now: float) -> Iterator[Text]:
    """The answer as lines of text: each series of checkpoints, the newest first.

    `trouble`: why some may be missing; `now`: unix time.
    """
    for state in states:
        yield Text(f"{clean(state.folder)}/{clean(state.series, 80)}", style="bold")
        width = max((len(clean(one.name, 60)) for one in state.listed), default=0)
        for one in state.listed:
            yield from _checkpoint(one, width, now)
        hidden = sum(state.counts.values()) - len(state.listed)
        if hidden > 0:
            yield Text(f"  and {hidden} older")
        for gap in state.gaps:
            yield Text(f"  not read: {gap.reason}", style="yellow")
        if state.last is None:
            yield Text("  none of them is whole", style="red")
        yield Text("")
    if trouble:
        yield Text(f"there may be more: {trouble}", style="yellow")


def _checkpoint(one: KnownCheckpoint, width: int, now: float) -> Iterator[Text]:
    style = {Completeness.COMPLETE: "green", Completeness.INCOMPLETE: "red"}.get(
        one.state, "yellow"
    )
    step = f", step {one.step:,}" if one.step is not None else ""
    age = duration_words(round(now - one.ended))
    line = Text(f"  {clean(one.name, 60):{width}}  ")
    line.append(f"{WORDS[one.state]:13}", style=style)
    yield line.append(f"  {age} old{step}, {size_words(one.size)}")
    if one.why and one.state is not Completeness.COMPLETE:
        yield Text(f"  {'':{width}}  {one.why}")


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug checkpoints`: say which checkpoints in a folder are whole."""
    return command
