"""Show the training jobs on this node and their ranks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from mldebug.config import load_config
from mldebug.folding import fold_ranks
from mldebug.model import Gap, Job, Remark
from mldebug.redact import clean
from mldebug.settings.units import format_duration
from mldebug.snapshot import RunState, Snapshot
from mldebug_agents.client import ask_agent
from mldebug_agents.workbench import Workbench

MAX_LISTED = 8


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What discovery found on this node, as `--json` prints it; `now` is unix time."""

    node: str
    now: float
    jobs: tuple[Job, ...]
    remarks: tuple[Remark, ...]
    gaps: tuple[Gap, ...]
    agent: Snapshot | None = None  # what the agent of this node says, where one runs


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print an object with all jobs.")
@click.option("--config", type=click.Path(path_type=Path), help="Config file.")
def command(as_json: bool, config: Path | None) -> None:
    """Show the training jobs on this node and their ranks: who runs them, who is missing.

    Nothing is attached to and nothing is stopped.
    """
    settings = load_config(config)
    with Workbench(settings) as bench:
        found = bench.finder.find()
        seen = Seen(
            node=bench.node,
            now=time.time(),
            jobs=tuple(found.jobs),
            remarks=tuple(found.remarks),
            gaps=tuple(found.gaps),
            agent=ask_agent(settings.agent.state_dir),
        )
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(seen), indent=2).decode())
        return
    console = Console()
    for line in status_lines(seen):
        console.print(line, soft_wrap=True, highlight=False)


def status_lines(seen: Seen) -> Iterator[Text]:
    """Yield the answer line by line; names that a job chose are cleaned and never markup."""
    count = f"{len(seen.jobs)} training {'job' if len(seen.jobs) == 1 else 'jobs'}"
    yield Text(f"{count} on {clean(seen.node, 64)}", style="bold")
    watched = {run.id: run for run in seen.agent.runs} if seen.agent else {}
    for job in seen.jobs:
        yield Text("")
        yield from _job(job, seen.now)
        yield from _watched(watched.get(job.id))
    yield from _listed("Odd", [clean(remark.message, 300) for remark in seen.remarks])
    yield from _listed("Not seen", _gaps(seen.gaps))
    if seen.jobs:
        yield Text(
            "\nOne of them hangs? mldebug dump" + (" --job ID" if len(seen.jobs) > 1 else "")
        )


def _job(job: Job, now: float) -> Iterator[Text]:
    title = Text.assemble((clean(job.name, 60), "bold"), f"  id {clean(job.id, 40)}")
    yield title
    yield Text(f"  {', '.join(_facts(job, now))}")
    yield from _ranks(job)


def _watched(run: RunState | None) -> Iterator[Text]:
    """What the agent says of it: how far it is, and why it is quiet or not."""
    if run is None:
        return
    told = [f"step {run.step}"] if run.step is not None else []
    told += [f"loss {run.loss:g}"] if run.loss is not None else []
    yield Text(clean(f"  {', '.join([*told, f'log {run.log}'])}", 300))
    yield Text(clean(f"  {run.stage}: {run.sentence}", 400), style="red" if run.incident else "")
    if run.incident:
        yield Text(clean(f"  {run.report}", 400), style="bold red")
        yield Text(f"  mldebug reports show {clean(run.incident, 80)}")


def _facts(job: Job, now: float) -> Iterator[str]:
    yield clean(job.launcher, 40)
    yield f"user {clean(job.user, 40) or job.uid}"
    if job.started_at:
        yield f"started {format_duration(float(max(0, int(now - job.started_at))))} ago"
    if job.attempt:
        yield f"attempt {job.attempt}"
    if job.launcher_pid:
        yield f"launcher pid {job.launcher_pid}"


def _ranks(job: Job) -> Iterator[Text]:
    """Who is here, who died, and who should be here: a node knows that from the local world size."""
    here = {rank.rank for rank in job.ranks}
    expected = max((rank.local_world_size or 0 for rank in job.ranks), default=0)
    of = f", {len(here)} of {expected} expected here" if here and expected > len(here) else ""
    pids = " ".join(str(rank.pid) for rank in job.ranks[:MAX_LISTED])
    more = " …" if len(job.ranks) > MAX_LISTED else ""
    ranks = f"ranks {fold_ranks(here)}" if len(here) != 1 else f"rank {fold_ranks(here)}"
    yield Text(
        f"  {ranks if here else 'no rank'} of {job.world_size}{of}; pids {pids or '-'}{more}"
    )
    for lost in job.lost:
        yield Text(f"  rank {lost.rank} is gone: {clean(lost.reason, 200)}", style="red")


def _gaps(gaps: Sequence[Gap]) -> list[str]:
    """One line for each reason, however many processes it hit."""
    counted: dict[tuple[str, str, str], int] = {}
    for gap in gaps:
        key = (gap.what, gap.reason, gap.way_out)
        counted[key] = counted.get(key, 0) + 1
    return [_gap(key, count) for key, count in _most_first(counted)]


def _gap(key: tuple[str, str, str], count: int) -> str:
    what, reason, way_out = key
    times = f" ({count} times)" if count > 1 else ""
    return clean(f"{what}{times}: {reason}", 300) + (f" → {clean(way_out, 200)}" if way_out else "")


def _most_first(
    counted: Mapping[tuple[str, str, str], int],
) -> list[tuple[tuple[str, str, str], int]]:
    return sorted(counted.items(), key=lambda item: -item[1])


def _listed(heading: str, lines: Sequence[str]) -> Iterator[Text]:
    if lines:
        yield Text(f"\n{heading}:")
    for line in lines[:MAX_LISTED]:
        yield Text(f"  {line}")
    if len(lines) > MAX_LISTED:
        yield Text(f"  … and {len(lines) - MAX_LISTED} more")


def create(options: Options) -> click.Command:
    """Build the command."""
    return command
