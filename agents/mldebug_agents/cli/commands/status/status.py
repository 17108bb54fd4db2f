"""Show the training jobs on this node and their ranks."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec

from mldebug.cli.console import Console, print_line
from mldebug.cli.repeat import looks
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import ExitCode, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.status.job_table import JobFilter, JobRow
from mldebug.status.snapshot import Snapshot
from mldebug_agents.cli.current_jobs import are_current, moment
from mldebug_agents.cli.job_list import JobListOptions, job_list_options, show_jobs
from mldebug_agents.cli.node_listing import NodeListing, jobs_shown, run_of, status_lines
from mldebug_agents.cli.node_options import node_options
from mldebug_agents.system.host import Host
from mldebug_agents.web.client import ask_nearest, found_jobs

SEARCH = "mldebug_agents.cli.node_search"  # imported where the agent does not answer for it
NODES, LOOK = "mldebug_agents.cluster.node_views", "mldebug_agents.agent.node_look"


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
    settings, here_only = load_config(config), config is not None
    if send:
        import_module(LOOK).send_view(settings, here_only=here_only)
        return
    options.wanted()  # a wrong --since is told before anything is looked at
    if everywhere or storage or slurm_job or hosts:
        options.refuse("--cluster, --storage, --slurm-job and --hosts")
    if slurm_job is not None or hosts is not None:
        far = import_module(NODES).far_nodes(("status", "--send"), slurm_job, hosts, there, wait)
        if everywhere or storage:
            raise UsageError(
                "--cluster and --storage ask the agent of this node: they do not go with other nodes",
                "leave one out",
            )
        show = import_module(SEARCH)
        sys.exit(show.show_far(settings, far, as_json))
    if everywhere or storage:
        show = import_module(SEARCH)
        show_it = show.show_cluster if everywhere else show.show_storage
        sys.exit(show_it(settings, as_json, here_only=here_only))
    console = Console()
    with ExitStack() as stack:
        lister = _Lister(settings, here_only, stack)
        look = partial(_list, lister, options)
        for listing in looks(look, watch, console):
            code = _show(listing, options, console, config)
    sys.exit(code)


class _Lister:
    """Lists what is on this node: by the agent's last search where that is current, else by one of its own, whose tools stay open until
    `stack` ends.
    """

    def __init__(self, settings: Config, here_only: bool, stack: ExitStack) -> None:
        self._settings, self._here_only, self._stack = settings, here_only, stack
        self._search: Any = None

    def listing(self, *, exactly: bool) -> NodeListing:
        """What is here now. `exactly`: search for it in any case, as what is printed has more than a person reads."""
        near = ask_nearest(self._settings.agent.state_dir, here_only=self._here_only)
        if near.answer.snapshot is not None and not exactly:
            listing = _by_agent(near.answer.snapshot, near.state_dir)
            if listing is not None:
                return listing
        if self._search is None:
            self._search = self._stack.enter_context(import_module(SEARCH).opened(self._settings))
        own: NodeListing = self._search.listing(near.answer)
        return own


def _by_agent(
    agent: Snapshot, state_dir: Path, briefs: Callable[[], Any] = lambda: Host().briefs()
) -> NodeListing | None:
    """What the agent has found; None where it says nothing of that, or something may have begun or ended since."""
    found = found_jobs(state_dir)
    if found is None or not are_current(found, agent.pid, briefs(), *moment()):
        return None
    return NodeListing(
        node=agent.node,
        now=time.time(),
        jobs=jobs_shown(found.jobs, agent),
        remarks=found.remarks,
        gaps=found.gaps,
        traps={run.id: run.traps for run in agent.runs},
        agent=agent,
    )


def _list(lister: _Lister, options: JobListOptions) -> NodeListing:
    """What is on this node; only the jobs that are wanted."""
    listing, wanted = lister.listing(exactly=options.form == "json"), options.wanted()
    rows = (JobRow(job=one, run=run_of(one, listing.agent)) for one in listing.jobs)
    jobs = tuple(row.job for row in rows if wanted.matches(row))
    return msgspec.structs.replace(listing, jobs=jobs)


def _show(
    listing: NodeListing, options: JobListOptions, console: Console, config: Path | None
) -> ExitCode:
    """Print it in the form that is wanted; FOUND where one of the jobs has an open incident."""
    rows = [JobRow(job=one, run=run_of(one, listing.agent)) for one in listing.jobs]
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


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug status`: show the training jobs on this node and their ranks."""
    return command
