"""What `mldebug status` does where this node's agent does not answer for it: search the node, ask other nodes, look at storage.

Imported only then: it is most of the program.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.config.schema import Config
from mldebug.core.errors import ExitCode
from mldebug.jobs.known_issues.match import KnownIssue
from mldebug.status.cluster_lines import cluster_lines, stalled
from mldebug.status.node_lines import status_of_nodes
from mldebug.status.snapshot import Snapshot
from mldebug.status.storage_lines import checkpoints_part, storage_json, storage_lines
from mldebug.storage.filesystems.state import CollectorState, StorageState
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.cli.node_listing import NodeListing, jobs_shown, run_of
from mldebug_agents.cluster.fanout.progress_line import Waiting
from mldebug_agents.cluster.node_views import (
    FarNodes,
    cluster_view,
    exit_code,
    view_nodes_once,
)
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.storage.collectors import storage_collectors
from mldebug_agents.storage.monitor import look_once
from mldebug_agents.web.client import AgentAnswer, ask_nearest


class NodeSearch:
    """Searches this node for jobs, again and again with the same tools."""

    def __init__(self, tools: NodeTools) -> None:
        self._tools = tools

    def listing(self, answer: AgentAnswer) -> NodeListing:
        """What is here now, beside what the agent has answered."""
        found, agent = self._tools.capture.finder.find(), answer.snapshot
        return NodeListing(
            node=self._tools.context.node,
            now=time.time(),
            jobs=jobs_shown(found.all, agent),
            remarks=tuple(found.remarks),
            gaps=tuple(found.gaps),
            traps=_traps_shown(self._tools, found, agent),
            agent=agent,
            agent_trouble=answer.trouble,
        )


@contextmanager
def opened(settings: Config) -> Iterator[NodeSearch]:
    """A search of this node, as long as its tools are open."""
    with open_tools(settings) as tools:
        yield NodeSearch(tools)


def show_far(settings: Config, far: FarNodes, as_json: bool) -> ExitCode:
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


def show_storage(settings: Config, as_json: bool, *, here_only: bool) -> ExitCode:
    """What the agent knows of storage or, where it says nothing, what is found now."""
    with open_tools(settings) as tools:
        found = tools.capture.finder.find()
        answer = ask_nearest(settings.agent.state_dir, here_only=here_only).answer
        state = answer.snapshot.storage if answer.snapshot else None
        state = state or _storage_now(tools, found)
        parts = (checkpoints_part(answer.snapshot),) if answer.snapshot else ()
        return _storage(StorageState(parts=(*state.parts, *parts)), as_json)


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


def show_cluster(settings: Config, as_json: bool, *, here_only: bool) -> ExitCode:
    """Ask the agent of this node for all of them."""
    view = cluster_view(settings, here_only=here_only)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(view), indent=2).decode())
    else:
        for line in cluster_lines(view):
            print_line(Console(), Text(line))
    return ExitCode.FOUND if stalled(view) else ExitCode.FINE


def _traps_shown(
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
        run = run_of(job, agent)
        traps[job.id] = run.traps if run else tools.capture.known_issues.of(job, found.programs)
    return traps
