"""Profile some steps of a running job: what takes the time."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from mldebug.capture.inspection import (
    MOST_SECONDS,
    MOST_STEPS,
    InspectedRanks,
    InspectionOptions,
    RankProfile,
)
from mldebug.capture.profile.sentences import PERFETTO, SPEEDSCOPE
from mldebug.cli.param_types import JOB
from mldebug.config.schema import load_config
from mldebug.core.errors import AccessError, ExitCode
from mldebug.core.model import MeasuredData
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug_agents.cli.inspecting import CLUSTER, RanksWanted, file_lines, inspected, show
from mldebug_agents.incidents.step_orders import seconds_of

TEXT, TABLE = "profile.txt", "profile.json"


class JobProfile(MeasuredData, frozen=True, kw_only=True):
    """The profiles of a job, as `--json` prints them. `folder`: the evidence folder of the report, "" where it was not stored."""

    job: str
    folder: str
    profiles: tuple[RankProfile, ...]


@click.command("profile")
@click.argument("name", required=False, type=JOB, metavar="[JOB]")
@click.option("--job", type=JOB, help="The job with this id or name; default: the only one here.")
@click.option("--ranks", metavar="RANKS", help="Which ranks: 0,5 or 0-3; default: the lowest here.")
@CLUSTER
@click.option(
    "--steps", type=click.IntRange(1, MOST_STEPS), default=3, show_default=True, help="How many steps."
)  # fmt: skip
@click.option(
    "--seconds",
    type=click.IntRange(1, MOST_SECONDS),
    default=10,
    show_default=True,
    help="How long py-spy samples a rank that was not started with `mldebug run`.",
)
@click.option("--wait", default="60s", show_default=True, metavar="DURATION", help="How long the first step may take.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(
    name: str | None,
    job: str | None,
    ranks: str | None,
    everywhere: bool,
    steps: int,
    seconds: int,
    wait: str,
    as_json: bool,
    config: Path | None,
) -> None:
    """Profile some steps of a running job: what takes the time.

    Ranks that were started with `mldebug run` trace their next steps with torch.profiler; nothing is restarted. Of others
    py-spy samples the stacks. Ranks on other nodes are profiled by the agents there, where these know each other. The files lie in a
    report. Refused while a stall of the job is open.

    Exit code 0: all ranks were profiled; 1: the job is stalled; 3: a rank could not be profiled, with the reason.
    """
    options = InspectionOptions(what="profile", steps=steps, seconds=seconds, wait=seconds_of(wait))
    wanted = RanksWanted(name or job, ranks, options, everywhere, here_only=config is not None)
    with progress_line("profiling the next steps of the ranks"):
        done = inspected(load_config(config), wanted, _files)
    answer = JobProfile(job=done.job, folder=done.folder, profiles=done.found.profiles)
    show(answer, done, list(lines(answer)), as_json=as_json)
    if not done.found.files and done.found.failed and not as_json:
        raise AccessError("no rank could be profiled", "mldebug doctor  # what works on this node")
    sys.exit(ExitCode.MISSING if done.found.failed else ExitCode.FINE)


def lines(answer: JobProfile) -> Iterator[str]:
    """The answer as text: for each rank where its time went, and how its file is opened."""
    for one in answer.profiles:
        yield from one.lines()
        yield from file_lines(one, answer.folder)
        if one.file and answer.folder:
            yield f"  {PERFETTO if one.trace is not None else SPEEDSCOPE}"
        yield ""


def _files(found: InspectedRanks) -> Mapping[str, bytes]:
    return {TEXT: found.text().encode(), TABLE: msgspec.json.encode(found.profiles)}


def create(_: NoOptions) -> click.Command:
    """Build the command `mldebug profile`: profile some steps of a running job: what takes the time."""
    return command
