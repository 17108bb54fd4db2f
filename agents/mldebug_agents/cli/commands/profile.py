"""Profile some steps of a running job: what takes the time."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.capture.profile.sentences import PERFETTO, SPEEDSCOPE, profile_lines, sampled_lines
from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import JOB
from mldebug.config.schema import load_config
from mldebug.core.errors import AccessError, ExitCode
from mldebug.core.model import Noun
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.profile import RankProfile, take_profiles
from mldebug_agents.incidents.step_orders import seconds_of, step_target, stored

MOST_STEPS, MOST_SECONDS = 20, 60
TEXT, TABLE = "profile.txt", "profile.json"
PATHS = "file: "  # what such a line says stays in one piece


class JobProfile(Noun, frozen=True, kw_only=True):
    """The profiles of a job, as `--json` prints them. `folder`: the evidence folder of the report, "" where it was not stored."""

    job: str
    folder: str
    profiles: tuple[RankProfile, ...]


@click.command("profile")
@click.argument("name", required=False, type=JOB, metavar="[JOB]")
@click.option("--job", type=JOB, help="The job with this id or name; default: the only one here.")
@click.option("--ranks", metavar="RANKS", help="Which ranks: 0,5 or 0-3; default: the lowest here.")
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
    steps: int,
    seconds: int,
    wait: str,
    as_json: bool,
    config: Path | None,
) -> None:
    """Profile some steps of a running job: what takes the time.

    Ranks that were started with `mldebug run` trace their next steps with torch.profiler; nothing is restarted. Of others
    py-spy samples the stacks. The files lie in a report. Refused while a stall of the job is open.

    Exit code 0: all ranks were profiled; 1: one could not be, or the job is stalled; 3: a right or a tool is missing.
    """
    own, patience = load_config(config), seconds_of(wait)
    with progress_line("profiling the next steps of the ranks"), open_tools(own) as tools:
        found, wanted, chosen = step_target(
            tools.capture, own.agent.state_dir, name or job, ranks, here_only=config is not None
        )
        taken = take_profiles(tools.capture, chosen, steps, seconds, patience)
        text = "\n".join(line for one in taken.profiles for line in (*rank_lines(one), ""))
        files = {**taken.files, TEXT: text.encode(), TABLE: msgspec.json.encode(taken.profiles)}
        folder, trouble = stored(tools.capture, wanted, found, files) if taken.files else ("", "")
    answer = JobProfile(job=wanted.id, folder=folder, profiles=taken.profiles)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    else:
        console = Console()
        for line in lines(answer):
            print_line(console, Text(line, no_wrap=line.lstrip().startswith(PATHS)))
    if trouble:
        click.echo(f"mldebug: {trouble}", err=True)
    if not taken.files and not as_json:
        raise AccessError("no rank could be profiled", "mldebug doctor  # what works on this node")
    sys.exit(ExitCode.FOUND if any(one.failure for one in taken.profiles) else ExitCode.FINE)


def lines(answer: JobProfile) -> Iterator[str]:
    """The answer as text: for each rank where its time went, and how its file is opened."""
    for one in answer.profiles:
        yield from rank_lines(one)
        if one.file and answer.folder:
            how = PERFETTO if one.trace is not None else SPEEDSCOPE
            yield f"  file: {answer.folder}/{one.file}"
            yield f"  {how}"
        yield ""


def rank_lines(one: RankProfile) -> Iterator[str]:
    """The lines that show the profile of one rank."""
    if one.failure:
        yield f"rank {one.rank} (pid {one.pid}): not profiled: {one.failure}"
    elif one.trace is not None:
        cost = f"it stood still for {one.cost_seconds:.3f} s to begin and to write"
        yield f"rank {one.rank} (pid {one.pid}), steps {one.steps}, by torch.profiler; {cost}"
        yield from (f"  {line}" for line in profile_lines(one.trace))
    elif one.samples is not None:
        yield f"rank {one.rank} (pid {one.pid}), {one.samples.samples} samples by py-spy (it was not started with `mldebug run`)"
        yield from (f"  {line}" for line in sampled_lines(one.samples))


def create(_: NoOptions) -> click.Command:
    """Build the command `mldebug profile`: profile some steps of a running job."""
    return command
