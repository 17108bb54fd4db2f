"""The jobs of this node as `mldebug status` shows them: made of what was found here, and of what the agent says."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.text import Text

from mldebug.alerts.hub_delivery import fleet_lines
from mldebug.alerts.status_lines import event_lines
from mldebug.core.model import Gap, Job, Remark
from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import clean
from mldebug.core.text import typed
from mldebug.core.units import duration_words
from mldebug.diagnosis.node_wait import wait_words
from mldebug.hardware.host_memory.state import alarms
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.jobs.known_issues.match import KnownIssue
from mldebug.jobs.schedulers.status_lines import orphan_line, scheduler_lines
from mldebug.status.gpu_lines import hardware_lines, rank_lines
from mldebug.status.run_lines import (
    ailing_lines,
    gap_lines,
    goodput_words,
    pace_words,
    stale_words,
    state_words,
)
from mldebug.status.snapshot import RunState, Snapshot, is_run_of, job_of
from mldebug.storage.checkpoints.state import lines_of
from mldebug_agents.jobs.ranks.ras_address import BY_RAS

MAX_LISTED = 8
NO_AGENT = "no agent watches them: a stall is noticed by nobody"
UNSEEN = "exit unknown"


class NodeListing(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on this node, as `--json` prints it. `now`: unix time."""

    node: str
    now: float
    jobs: tuple[Job, ...]
    remarks: tuple[Remark, ...]
    gaps: tuple[Gap, ...]
    traps: dict[str, tuple[KnownIssue, ...]] = {}  # by id of the job: known ones that it sits in
    agent: Snapshot | None = None  # what the agent of this node says, where one runs
    agent_trouble: str = ""  # why it says nothing, where one is here


def jobs_shown(found: Sequence[Job], agent: Snapshot | None) -> tuple[Job, ...]:
    """The jobs found on this node; where the agent plays back a recording, the jobs of that."""
    if agent is None or not agent.replay:
        return tuple(found)
    return tuple(map(job_of, agent.runs))


def status_lines(listing: NodeListing, config: Path | None = None) -> Iterator[Text]:
    """The answer line by line; names that a job has chosen are cleaned and never taken for markup.

    `config`: the file that was given, for the commands that are suggested.
    """
    count = f"{len(listing.jobs)} training {'job' if len(listing.jobs) == 1 else 'jobs'}"
    yield Text(f"{count} on {clean(listing.node, 64)}", style="bold")
    yield from _agent(listing, config)
    events = listing.agent.kernel_events if listing.agent else ()
    for job in listing.jobs:
        yield Text("")
        run = run_of(job, listing.agent)
        yield from _job(job, run, listing.now)
        if run is None and job.waits is not None:
            yield Text(clean(f"  {wait_words(job, listing.now)}", 400))
        yield from _watched(run, config, events, listing.now)
        yield from _traps(listing.traps.get(job.id, ()))
    yield from _listed("Odd", [clean(remark.message, 300) for remark in listing.remarks])
    memory = listing.agent.memory if listing.agent else None
    yield from _listed("Not seen", gap_lines((*listing.gaps, *(memory.gaps if memory else ()))))
    if listing.agent is not None and listing.agent.replay:
        return
    runs = [run_of(job, listing.agent) for job in listing.jobs]
    if not all(run and run.incident for run in runs):  # else a report of each stands above
        yield Text(f"\nOne of them hangs? {typed('dump', config)}", no_wrap=True)
        if len(listing.jobs) > 1:
            one = f"dump --job {shlex.quote(clean(listing.jobs[0].id, 40))}"
            yield Text(f"Only the first of them: {typed(one, config)}", no_wrap=True)


def run_of(job: Job, agent: Snapshot | None) -> RunState | None:
    """What the agent knows of a job; None where it does not watch it, or there is none."""
    return next((run for run in agent.runs if is_run_of(run, job)), None) if agent else None


def _traps(traps: Sequence[KnownIssue]) -> Iterator[Text]:
    for trap in traps[:MAX_LISTED]:
        yield Text(f"  known trap: {clean(trap.line(), 600)}", style="yellow")
    if len(traps) > MAX_LISTED:
        yield Text(f"  … and {len(traps) - MAX_LISTED} more known traps: --json lists them")


def _agent(listing: NodeListing, config: Path | None) -> Iterator[Text]:
    """Lines about the agent: since when it watches, open incidents, and what it cannot do at present."""
    agent = listing.agent
    if agent is None:
        yield Text(clean(listing.agent_trouble or NO_AGENT, 300), style="yellow")
        if not listing.agent_trouble:
            yield Text(f"  start one: {typed('up', config)}", no_wrap=True)
        return
    if agent.replay:
        yield Text(
            f"a replay of {clean(agent.replay, 100)}: nothing of it is here or now", style="yellow"
        )
        return
    since = duration_words(int(listing.now - agent.started_at))
    stalled = sum(bool(run.incident) for run in agent.runs)
    state = (
        f"{stalled} {'incident' if stalled == 1 else 'incidents'} open"
        if stalled
        else "no incident open"
    )
    yield Text(f"an agent watches them for {since}: {state}", style="red" if stalled else "")
    if stale := stale_words(listing.now - agent.at):
        yield Text(f"  {stale}", style="red")
    incidents = {run.incident for run in agent.runs}
    for line in (*event_lines(agent.events, incidents, listing.now), *fleet_lines(agent.fleet)):
        yield Text(clean(f"  {line}", 400), style="yellow")
    if agent.cluster:
        yield Text(clean(f"  other nodes: {agent.cluster}", 300))
    if agent.hidden_runs:
        runs = "run" if agent.hidden_runs == 1 else "runs"
        yield Text(
            f"  it hides {agent.hidden_runs} {runs} of other users: ask as root or as a member of agent.group"
        )
    for line in ailing_lines(agent):
        yield Text(clean(f"  {line}", 300), style="yellow")
    for line in alarms(agent.memory) if agent.memory else ():
        yield Text(clean(f"  {line}", 300), style="red")
    for line, bad in scheduler_lines(agent.schedulers, listing.now):
        yield Text(clean(f"  {line}", 400), style="red" if bad else "")
    for orphan in agent.orphans or ():
        yield Text(clean(f"  {orphan_line(orphan, listing.now)}", 400), style="yellow")
    for status_line in hardware_lines(agent, listing.now):
        yield Text(clean(f"  {status_line.text}", 400), style="red" if status_line.bad else "")


def _job(job: Job, run: RunState | None, now: float) -> Iterator[Text]:
    title = Text.assemble((clean(job.name, 60), "bold"), f"  id {clean(job.id, 40)}")
    yield title
    yield Text(f"  {', '.join(_facts(job, now))}")
    yield from _ranks(job, run.exits if run else {})


def _watched(
    run: RunState | None, config: Path | None, events: Sequence[RankEvent], now: float
) -> Iterator[Text]:
    """What the agent says of it: how far it is, why it is quiet or not, what its GPUs do and what befell its ranks."""
    if run is None:
        return
    if run.ranks or run.log:
        yield Text(clean(f"  {', '.join([*pace_words(run), f'log {run.log}'])}", 300))
    yield Text(
        clean(f"  {state_words(run)}", 400),
        style="red" if run.incident else "",
    )
    if run.lives_by:
        yield Text(clean(f"  lives by {run.lives_by}", 300))
    if run.devices:
        yield Text(clean(f"  {run.devices}", 400))
    for line in (*goodput_words(run), *lines_of(run.checkpoint_series, run.id)):
        yield Text(clean(f"  {line}", 400))
    for line in rank_lines(events, run, now):
        yield Text(clean(f"  {line}", 400), style="red")
    if run.incident:
        yield Text(clean(f"  {run.report}", 400), style="bold red")
        show = f"reports show {shlex.quote(clean(run.incident, 80))}"
        yield Text(f"  the whole report: {typed(show, config)}", no_wrap=True)


def _facts(job: Job, now: float) -> Iterator[str]:
    yield clean(job.launcher, 40)
    yield f"user {clean(job.user, 40) or job.uid}"
    if job.started_at:
        yield f"started {duration_words(int(now - job.started_at))} ago"
    if job.attempt:
        yield f"attempt {job.attempt}"
    if job.launcher_pid:
        yield f"launcher pid {job.launcher_pid}"


def _ranks(job: Job, exits: Mapping[int, str]) -> Iterator[Text]:
    """Who is here, who died, and who should be here: a node knows that from the local world size."""
    if job.waits is not None:
        return
    here = {rank.rank for rank in job.ranks}
    expected = max((rank.local_world_size or 0 for rank in job.ranks), default=0)
    of = f", {len(here)} of {expected} expected here" if here and expected > len(here) else ""
    pids = " ".join(str(rank.pid) for rank in job.ranks[:MAX_LISTED])
    more = " …" if len(job.ranks) > MAX_LISTED else ""
    ranks = f"ranks {fold_ranks(here)}" if len(here) != 1 else f"rank {fold_ranks(here)}"
    by = "; which is which NCCL RAS tells" if job.launcher == BY_RAS else ""
    yield Text(
        f"  {ranks if here else 'no rank'} of {job.world_size}{of}; pids {pids or '-'}{more}{by}"
    )
    for lost in job.lost:
        how = exits.get(lost.rank) or lost.reason
        how = "nobody saw how it ended" if how == UNSEEN else how
        yield Text(f"  rank {lost.rank} is gone: {clean(how, 200)}", style="red")


def _listed(heading: str, lines: Sequence[str]) -> Iterator[Text]:
    if lines:
        yield Text(f"\n{heading}:")
    for line in lines[:MAX_LISTED]:
        yield Text(f"  {line}")
    if len(lines) > MAX_LISTED:
        yield Text(f"  … and {len(lines) - MAX_LISTED} more")
