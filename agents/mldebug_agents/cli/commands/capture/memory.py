"""Say which lines of a running job hold its CUDA memory."""

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from mldebug.capture.inspection import InspectedRanks, InspectionOptions, RankHolders
from mldebug.cli.param_types import JOB
from mldebug.config.schema import load_config
from mldebug.core.errors import ExitCode
from mldebug.core.model import MeasuredData
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug_agents.cli.inspecting import CLUSTER, RanksWanted, file_lines, inspected, show
from mldebug_agents.incidents.step_orders import seconds_of

TEXT = "memory.txt"


class JobMemory(MeasuredData, frozen=True, kw_only=True):
    """Who holds the memory of a job, as `--json` prints it. `folder`: the evidence folder of the report, "" where it was not stored."""

    job: str
    folder: str
    ranks: tuple[RankHolders, ...]


@click.command("memory")
@click.argument("name", required=False, type=JOB, metavar="[JOB]")
@click.option("--job", type=JOB, help="The job with this id or name; default: the only one here.")
@click.option("--ranks", metavar="RANKS", help="Which ranks: 0,5 or 0-3; default: the lowest here.")
@CLUSTER
@click.option("--wait", default="60s", show_default=True, metavar="DURATION", help="How long the next step may take.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(
    name: str | None,
    job: str | None,
    ranks: str | None,
    everywhere: bool,
    wait: str,
    as_json: bool,
    config: Path | None,
) -> None:
    """Say which lines of a running job hold its CUDA memory.

    For jobs that were started with `mldebug run --memory-history`: asked after the next step, added up by line and by phase. The
    answer lies in a report, too. Refused while a stall of the job is open.

    Exit code 0: all ranks have answered; 1: the job is stalled; 3: a rank has not answered, with the reason.
    """
    options = InspectionOptions(what="memory", wait=seconds_of(wait))
    wanted = RanksWanted(name or job, ranks, options, everywhere, here_only=config is not None)
    with progress_line("waiting for the ranks to answer at their next step"):
        done = inspected(load_config(config), wanted, _files)
    lines = [line for one in done.found.memory for line in (*one.lines(), *file_lines(one, ""))]
    lines.append(f"stored in {done.folder}" if done.folder else "")
    answer = JobMemory(job=done.job, folder=done.folder, ranks=done.found.memory)
    show(answer, done, lines, as_json=as_json)
    sys.exit(ExitCode.MISSING if done.found.failed else ExitCode.FINE)


def _files(found: InspectedRanks) -> Mapping[str, bytes]:
    return {TEXT: found.text().encode()}


def create(_: NoOptions) -> click.Command:
    """Build the command `mldebug memory`: say which lines of a running job hold its CUDA memory."""
    return command
