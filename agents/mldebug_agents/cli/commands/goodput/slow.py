"""Say which rank slows a running job down."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import JOB
from mldebug.config.schema import load_config
from mldebug.core.errors import AccessError, ExitCode
from mldebug.core.model import Job, MeasuredData
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.core.units import percent
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.sample_rows import SampleRows
from mldebug.goodput.sentences import slow_words
from mldebug.goodput.straggler import STRETCHES, Slowness
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.incidents.manual import choose
from mldebug_agents.watch.wait_sampler import SampleOrder, WaitSampler

STUCK = 0.95  # of the time waited for: no step has ended


class JobSlowness(MeasuredData, frozen=True, kw_only=True):
    """One job, and which of its ranks slows the others down, found in samples of their stacks. `sentence`: the same in words."""

    job: str
    name: str
    sentence: str
    found: Slowness


@click.command("slow")
@click.argument("name", required=False, type=JOB, metavar="[JOB]")
@click.option(
    "--job", type=JOB, help="The job with this id or name; default: every job on this node."
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, one per job.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(name: str | None, job: str | None, as_json: bool, config: Path | None) -> None:
    """Say which rank slows a running job down, and what it does meanwhile.

    Samples the stacks of all ranks on this node with py-spy, which stops none of them, and compares how long each waits for
    the others. JOB is the same as --job JOB.

    Exit code 0: nobody slows the others down; 1: somebody does; 3: a right or a tool is missing to look.
    """
    with progress_line("sampling the ranks"), open_tools(load_config(config)) as tools:
        jobs = choose(tools.capture.finder.find(), None, name or job)
        sampler = WaitSampler(tools.capture)
        answers = [judged(one, sampler) for one in jobs]
    if all(not one.found.shares for one in answers):
        raise AccessError(
            "no rank could be sampled", "mldebug doctor  # what works on this node as this user"
        )
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answers), indent=2).decode())
    else:
        console = Console()
        for answer in answers:
            for line in lines(answer):
                print_line(console, line)
    slow = any(one.found.ranks for one in answers)
    sys.exit(ExitCode.FOUND if slow else ExitCode.FINE)


def judged(job: Job, sampler: WaitSampler) -> JobSlowness:
    """Which ranks slow a job down, by as many samples as the agent itself takes before it names one."""
    rows, found = SampleRows(least=STRETCHES), None
    while found is None:
        found = rows.add(sampler.take(SampleOrder(job)), known=False)
    words = slow_words(found, job.world_size) or f"nobody slows the others down: {found.why_nobody}"
    return JobSlowness(job=job.id, name=job.name, sentence=words, found=found)


def lines(answer: JobSlowness) -> Iterator[Text]:
    """The answer for one job: the sentence, and a table of its ranks, the slow ones first."""
    yield Text(f"{clean(answer.name)} ({answer.job})", style="bold")
    sentence = answer.sentence[:1].upper() + answer.sentence[1:]
    yield Text(f"  {sentence}.", style="red" if answer.found.ranks else "green")
    if answer.found.loss > STUCK:
        yield Text(f"  No step ended meanwhile. Is it stuck? mldebug dump --job {answer.job}")
    slow = {one.rank for one in answer.found.ranks}
    shown = sorted(answer.found.shares, key=lambda one: (one.rank not in slow, one.rank))
    if shown:
        yield Text(f"  {'rank':>6} {'waits':>6} {'data':>6} {'works':>6}  mostly in", style="dim")
    yield from _rows(shown, slow)
    yield Text("")


def _rows(shares: Sequence[RankShares], slow: set[int]) -> Iterator[Text]:
    for one in shares:
        place = max(one.places, key=lambda name: one.places[name], default="")
        works = max(0.0, 1 - one.waiting - one.loading)
        row = f"  {one.rank:>6} {percent(one.waiting):>6} {percent(one.loading):>6} {percent(works):>6}  {clean(place)}"
        yield Text(row, style="red" if one.rank in slow else "", no_wrap=True)


def create(_: NoOptions) -> click.Command:
    """Build the command `mldebug slow`: say which rank slows a running job down."""
    return command
