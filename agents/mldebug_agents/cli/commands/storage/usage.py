"""Say who uses what on a full disk, and which checkpoints could go."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import FOLDER
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import AccessError, NothingFoundError
from mldebug.core.plugins import NoOptions, create_all
from mldebug.core.progress import ProgressLine, progress_line
from mldebug.core.redact import clean
from mldebug.storage.usage.lines import usage_lines
from mldebug.storage.usage.tally import UsageTally, without_nested
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.checkpoints.reader import plain_part
from mldebug_agents.storage.usage.answer import UsageAnswerer
from mldebug_agents.storage.usage.client import count_trees
from mldebug_agents.storage.usage.known_runs import KnownRun, processes, recorded, running
from mldebug_agents.storage.usage.messages import MOST, SECONDS, CountRequest
from mldebug_agents.web.client import ask_nearest

MAX_PROCESSES = 4096


@click.command("usage")
@click.argument("directories", type=FOLDER, nargs=-1, metavar="[DIRECTORY]...")
@click.option("--keep", type=click.IntRange(1, 1000), default=3, show_default=True, help="Whole checkpoints of each series that stay.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(1, 86400), default=SECONDS, show_default=True, help="Count for so long at most.")  # fmt: skip
@click.option("--inodes", type=click.IntRange(1, 1_000_000_000), default=MOST, show_default=True, help="Count so many at most.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print an object with all rows.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(
    directories: tuple[str, ...], keep: int, seconds: float, inodes: int, as_json: bool, config: Path | None
) -> None:  # fmt: skip
    """Say who uses what below directories, and which checkpoints could go. Nothing is ever deleted.

    Without a DIRECTORY: where your runs on this node write, and what the config names. Bytes and inodes by user and by run, hard
    links once, sparse files by their blocks; with your rights, at idle priority, through no link and into no other filesystem.

    The newest whole checkpoint never counts as one that could go, nor one that a run named or may have resumed from.
    """
    own = load_config(config)
    with progress_line("counting") as shown, open_tools(own) as tools:
        nearest = ask_nearest(own.agent.state_dir, here_only=config is not None)
        snapshot = nearest.answer.snapshot
        runs = list(running(tools.context.host, tools.capture.finder.find().jobs, snapshot))
        paths = tuple(without_nested(map(os.path.abspath, directories or _known(own, runs))))
        if not paths:
            raise NothingFoundError("no run is seen here and the config names no directory", "mldebug usage DIRECTORY")  # fmt: skip
        tally = UsageTally()
        request = CountRequest(paths=tuple(map(os.fsencode, paths)), seconds=seconds, most=inodes)
        trees = count_trees(tools.context.spawner, request, tally, lambda at: _at(shown, at))
        past, trouble = recorded(nearest.state_dir) if snapshot else ((), "no agent runs here")
        runs += [*past, _processes(tools)]
        answerer = UsageAnswerer(tools.context.reader, create_all("checkpoints"), tally, runs, tools.context.host.user)  # fmt: skip
        if trouble:
            answerer.notes.append(f"what earlier runs resumed from: {trouble}")
        found = answerer.answer(trees, keep, time.time())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        console = Console()
        for line in usage_lines(found):
            print_line(console, Text(line))
    if all(tree.trouble for tree in trees):
        raise AccessError("nothing could be counted", "name a directory that you may read")


def _known(config: Config, runs: list[KnownRun]) -> Iterator[str]:
    """Folders in which the agent saw checkpoints of runs, and those of the config."""
    for run in runs:
        yield from run.writes
    yield from config.trees.paths
    yield from (plain_part(pattern) for pattern in config.checkpoints.paths)


def _processes(tools: NodeTools) -> KnownRun:
    host = tools.context.host
    paths = {f"{host.proc}/{pid}/cmdline": pid for pid in host.pids()[:MAX_PROCESSES]}
    contents = tools.context.reader.read_many(list(paths), max_bytes=16384)
    return processes(host, {paths[path]: data for path, data in contents.items() if isinstance(data, bytes)})  # fmt: skip


def _at(line: ProgressLine, place: str) -> None:
    line.now(f"counting {clean(place, 60)}")


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug usage`: say who uses what on a full disk, and which checkpoints could go."""
    return command
