"""Show the training jobs on this node and their ranks."""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.alerts.hub_delivery import fleet_lines
from mldebug.alerts.status_lines import event_lines
from mldebug.cli.console import Console, print_line
from mldebug.cli.repeat import looks
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import ExitCode, UsageError
from mldebug.core.model import Gap, Job, Remark
from mldebug.core.plugins import NoOptions
from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import clean
from mldebug.core.text import typed
from mldebug.core.units import duration_words
from mldebug.diagnosis.node_wait import wait_words
from mldebug.hardware.host_memory.state import alarms
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.jobs.known_issues.match import KnownIssue
from mldebug.jobs.schedulers.status_lines import orphan_line, scheduler_lines
from mldebug.status.cluster_lines import cluster_lines, stalled
from mldebug.status.gpu_lines import hardware_lines, rank_lines
from mldebug.status.job_table import JobFilter, JobRow
from mldebug.status.node_lines import status_of_nodes
from mldebug.status.run_lines import (
    ailing_lines,
    gap_lines,
    goodput_words,
    pace_words,
    stale_words,
    state_words,
)
from mldebug.status.snapshot import RunState, Snapshot, is_run_of, job_of
from mldebug.status.storage_lines import checkpoints_part, storage_json, storage_lines
from mldebug.storage.checkpoints.state import lines_of
from mldebug.storage.filesystems.state import CollectorState, StorageState
from mldebug_agents.agent.node_look import send_view
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.cli.job_list import JobListOptions, job_list_options, show_jobs
from mldebug_agents.cluster.fanout.progress_line import Waiting
from mldebug_agents.cluster.node_views import (
    FarNodes,
    cluster_view,
    exit_code,
    far_nodes,
    node_options,
    view_nodes_once,
)
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.jobs.ranks.rank_processes import BY_RAS
from mldebug_agents.storage.collectors import storage_collectors
from mldebug_agents.storage.monitor import look_once
from mldebug_agents.web.client import ask_nearest

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


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print an object with all jobs.")
@click.option("--cluster", "everywhere", is_flag=True, help="All nodes, as the agents know them.")
@click.option(
    "--storage",
    is_flag=True,
    help="Filesystems, quotas and checkpoints: how full, for how long, and what is whole.",
)
@job_list_options
@node_options
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(
    as_json: bool, everywhere: bool, storage: bool, since: str | None, job: str | None, verdict: str | None, output: str, watch: bool,
    slurm_job: str | None, hosts: str | None, there: str, wait: str | None, send: bool, config: Path | None,
) -> None:  # fmt: skip
    """Show the training jobs on this node, or on several, and their ranks: who runs them, who is missing.

    Where an agent runs: how far each job is, and why it is quiet or not. Nothing is attached to and nothing is
    stopped. Exit code 1: an incident is open, or a storage alarm is on; 3: a node did not answer.
    """
    options = JobListOptions(form="json" if as_json else output, since=since, job=job, verdict=verdict, watch=watch)  # fmt: skip
    as_json = options.form == "json"
    settings = load_config(config)
    if send:
        send_view(settings, here_only=config is not None)
        return
    options.wanted()  # a wrong --since is told before anything is looked at
    if everywhere or storage or slurm_job or hosts:
        options.refuse("--cluster, --storage, --slurm-job and --hosts")
    if far := far_nodes(("status", "--send"), slurm_job, hosts, there, wait):
        if everywhere or storage:
            raise UsageError(
                "--cluster and --storage ask the agent of this node: they do not go with other nodes",
                "leave one out",
            )
        sys.exit(_far(settings, far, as_json))
    if everywhere:
        sys.exit(_cluster(settings, as_json, here_only=config is not None))
    with open_tools(settings) as tools:
        if storage:
            found = tools.capture.finder.find()
            answer = ask_nearest(settings.agent.state_dir, here_only=config is not None).answer
            storage_state = answer.snapshot.storage if answer.snapshot else None
            storage_state = storage_state or _storage_now(tools, found)
            parts = (checkpoints_part(answer.snapshot),) if answer.snapshot else ()
            sys.exit(_storage(StorageState(parts=(*storage_state.parts, *parts)), as_json))
        console = Console()
        look = partial(_list, tools, settings, options, here_only=config is not None)
        for listing in looks(look, watch, console):
            code = _show(listing, options, console, config)
    sys.exit(code)


def _list(
    tools: NodeTools, settings: Config, options: JobListOptions, *, here_only: bool
) -> NodeListing:
    """Look at this node, and ask its agent; only the jobs that are wanted."""
    found = tools.capture.finder.find()
    answer = ask_nearest(settings.agent.state_dir, here_only=here_only).answer
    wanted, agent = options.wanted(), answer.snapshot
    jobs = jobs_shown(found.all, agent)
    return NodeListing(
        node=tools.context.node,
        now=time.time(),
        jobs=tuple(one for one in jobs if wanted.matches(JobRow(job=one, run=_run_of(one, agent)))),
        remarks=tuple(found.remarks),
        gaps=tuple(found.gaps),
        traps=traps_shown(tools, found, agent),
        agent=agent,
        agent_trouble=answer.trouble,
    )


def _show(
    listing: NodeListing, options: JobListOptions, console: Console, config: Path | None
) -> ExitCode:
    """Print it in the form that is wanted; FOUND where one of the jobs has an open incident."""
    rows = [JobRow(job=one, run=_run_of(one, listing.agent)) for one in listing.jobs]
    if options.form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(listing), indent=2).decode())
    elif options.form == "wide":
        for line in status_lines(listing, config):
            print_line(console, line)
    else:
        show_jobs(rows, options, clean(listing.node, 64), listing.now, console)
    runs = listing.agent.runs if listing.agent and options.wanted() == JobFilter() else ()
    shown = (*runs, *(row.run for row in rows if row.run is not None))
    return ExitCode.FOUND if any(run.incident for run in shown) else ExitCode.FINE


def _far(settings: Config, far: FarNodes, as_json: bool) -> ExitCode:
    """Ask several nodes by ssh or srun."""
    with Waiting(quiet=as_json) as progress:
        nodes = view_nodes_once(settings, far, progress)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(nodes), indent=2).decode())
    else:
        console = Console()
        for line in status_of_nodes(nodes):
            print_line(console, Text(line.text, style="red" if line.bad else ""))
    incident = any(run.incident for node in nodes.answers for run in node.runs)
    return exit_code(nodes, found=incident)


def _storage_now(tools: NodeTools, found: Discovery) -> StorageState:
    """Look at storage once, without an agent. Jobs that this user may not see are listed as gaps."""
    hidden = CollectorState(name="jobs", at=time.time(), gaps=tuple(found.gaps))
    collectors = storage_collectors(tools.context, tools.filesystem_probe)
    return StorageState(parts=(*look_once(collectors, found.jobs).parts, hidden))


def _storage(state: StorageState, as_json: bool) -> ExitCode:
    """Print filesystems, checkpoints and alarms; the exit code says whether an alarm is on."""
    if as_json:
        click.echo(storage_json(state))
    else:
        for line in storage_lines(state):
            print_line(Console(), Text(line.text, style="red" if line.bad else ""))
    return ExitCode.FOUND if state.alarms else ExitCode.FINE


def _cluster(settings: Config, as_json: bool, *, here_only: bool) -> ExitCode:
    """Ask the agent of this node for all of them."""
    view = cluster_view(settings, here_only=here_only)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(view), indent=2).decode())
    else:
        for line in cluster_lines(view):
            print_line(Console(), Text(line))
    return ExitCode.FOUND if stalled(view) else ExitCode.FINE


def traps_shown(
    tools: NodeTools, found: Discovery, agent: Snapshot | None
) -> dict[str, tuple[KnownIssue, ...]]:
    """The known traps (settings and versions known to cause failures) of each job, by job id: as
    the agent has found them, which reads logs, too.

    Those of jobs that it does not watch are looked up now.
    """
    if agent is not None and agent.replay:
        return {run.id: run.traps for run in agent.runs}
    traps = {}
    for job in found.jobs:
        run = _run_of(job, agent)
        traps[job.id] = run.traps if run else tools.capture.known_issues.of(job, found.programs)
    return traps


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
        run = _run_of(job, listing.agent)
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
    runs = [_run_of(job, listing.agent) for job in listing.jobs]
    if not all(run and run.incident for run in runs):  # else a report of each stands above
        yield Text(f"\nOne of them hangs? {typed('dump', config)}", no_wrap=True)
        if len(listing.jobs) > 1:
            one = f"dump --job {shlex.quote(clean(listing.jobs[0].id, 40))}"
            yield Text(f"Only the first of them: {typed(one, config)}", no_wrap=True)


def _run_of(job: Job, agent: Snapshot | None) -> RunState | None:
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


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug status`: show the training jobs on this node and their ranks."""
    return command
