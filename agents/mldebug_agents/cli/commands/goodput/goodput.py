"""Say where the GPU hours of the jobs on this node went."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import JOB
from mldebug.config.schema import load_config
from mldebug.core.errors import AccessError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.text import rfc3339
from mldebug.goodput.account.job_goodput import USE_WORDS, JobGoodput
from mldebug.goodput.account.run_summary import end_words
from mldebug.goodput.account.segments import GpuUse
from mldebug_agents.web.client import ask_nearest

WIDTH = 30  # characters of a bar
SHOWN_ENDS = 3  # attempts that are over


@click.command("goodput")
@click.option(
    "--job", type=JOB, help="The job with this name, or with a run of this id; default: all."
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, one per job.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(job: str | None, as_json: bool, config: Path | None) -> None:
    """Say where the GPU hours of jobs went: productive steps, start-up, checkpoints, stalls, lost work.

    Asks the agent of this node, which accounts for every second of every GPU of a job and joins the restarts and array
    tasks of one user's script. Jobs that ended in the last 30 days are shown as well.
    """
    answer = ask_nearest(load_config(config).agent.state_dir).answer
    if answer.snapshot is None:
        raise AccessError(
            answer.trouble or "no agent runs on this node, so no GPU hours were counted",
            "mldebug up  # starts one; then ask again",
        )
    jobs = _wanted(answer.snapshot.goodput, job)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(jobs), indent=2).decode())
        return
    console = Console()
    for one in jobs:
        for line in lines(one):
            print_line(console, line)
    if not jobs:
        click.echo("The agent of this node has not counted the GPU hours of any job yet.")


def _wanted(jobs: Sequence[JobGoodput], wanted: str | None) -> list[JobGoodput]:
    if wanted is None:
        return list(jobs)
    found = [one for one in jobs if wanted == one.name or wanted in {it.run for it in one.newest}]
    if not found:
        have = ", ".join(sorted({clean(one.name, 40) for one in jobs})) or "none"
        raise UsageError(
            f"no job {clean(wanted, 60)!r} has had its GPU hours counted here; jobs: {have}",
            "mldebug goodput",
        )
    return found


def lines(job: JobGoodput) -> Iterator[Text]:
    """Yield what the command prints about one job: a sentence, and a table of its GPU hours by use, the largest first."""
    who = f"{clean(job.name, 60)}, user {clean(job.user, 40) or job.uid}"
    yield Text(f"{who}, since {rfc3339(job.began)}", style="bold")
    yield Text(f"  {job.sentence}.")
    if job.advice:
        yield Text(f"  {job.advice}.")
    whole = sum(job.gpu_seconds.values()) or 1.0
    yield Text(f"  {'GPU hours':>10} {'share':>6}", style="dim")
    for use in sorted(GpuUse, key=lambda one: -job.gpu_seconds.get(one, 0.0)):
        seconds = job.gpu_seconds.get(use, 0.0)
        if seconds:
            share = seconds / whole
            bar = "#" * round(WIDTH * share)
            yield Text(
                f"  {seconds / 3600:>10.2f} {100 * share:>4.1f} %  {USE_WORDS[use]:<24} {bar}".rstrip(),
                no_wrap=True,
            )
    yield from _ends(job)
    many = f"{job.attempts} attempt{'' if job.attempts == 1 else 's'}"
    yield Text(f"  {whole / 3600:>10.2f}         in all, of {many}")
    yield Text("")


def _ends(job: JobGoodput) -> Iterator[Text]:
    """How the last attempts ended, where their time went, and which ranks the others waited for."""
    for one in [one for one in job.newest if one.ended is not None][-SHOWN_ENDS:]:
        yield Text(
            f"  run {clean(one.run, 40)}, attempt {one.attempt}: {clean(end_words(one), 400)}."
        )
        for line in one.stragglers:
            yield Text(f"    {clean(line, 400)}.")


def create(_: NoOptions) -> click.Command:
    """Build the command `mldebug goodput`: say where the GPU hours of the jobs on this node went."""
    return command
