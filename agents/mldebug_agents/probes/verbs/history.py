"""Earlier figures of the collectives probe, series by series, and which have shifted."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from mldebug.config.schema import load_config
from mldebug.core.errors import ExitCode
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.probes.history import JudgedSeries, SeriesTrend, current, judge_all
from mldebug.status.probe_lines import common, row
from mldebug_agents.probes.history.store import NAME, load


@click.command("history")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a list with an object for each series."
)
@click.option("--state-dir", type=click.Path(path_type=Path), help="Whose history. Default: the agent's of this user.")  # fmt: skip
def command(as_json: bool, state_dir: Path | None) -> int:
    """Earlier figures of the collectives probe, series by series, and which have shifted.

    A series has shifted when its last three runs are all slower than the spread of the runs before explains. Exit
    code 1: one has.
    """
    folder = state_dir or load_config(None).agent.state_dir
    judged = judge_all(load(folder))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(judged), indent=2).decode())
    else:
        for line in lines(judged, folder):
            click.echo(line)
    shifted = any(one.standing is SeriesTrend.SHIFTED for one in current(judged))
    return int(ExitCode.FOUND if shifted else ExitCode.FINE)


def lines(judged: Sequence[JudgedSeries], folder: Path) -> Iterator[str]:
    """A heading for what series have in common, and a line for each of them."""
    if not judged:
        yield clean(f"no probe has been kept in {folder / NAME}", 400)
    heading = ""
    for one in judged:
        if (found := common(one.series)) != heading:
            heading = found
            yield heading
        yield row(one)


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug probe history`: earlier figures of the collectives probe, series by series, and which have shifted."""
    return command
