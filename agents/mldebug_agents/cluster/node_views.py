"""Asks nodes what runs on them, for `mldebug status`, `gpus list` and `top`: each runs the same verb with --send, and nothing is installed there."""

import sys
from typing import NamedTuple

import msgspec

from mldebug.cluster.messages import CLUSTER_PATH, MAX_VIEW, ClusterView
from mldebug.cluster.wire import NodeReply, encode
from mldebug.config.schema import Config
from mldebug.core.errors import ExitCode, UsageError
from mldebug.core.model import NodeBrief
from mldebug.status.merged_runs import ViewedNodes
from mldebug_agents.cluster.fanout.abandonment import ended_by_signals
from mldebug_agents.cluster.fanout.collector import Progress
from mldebug_agents.cluster.fanout.messages import FanoutRequest, answer_seconds
from mldebug_agents.cluster.node_captures import FANOUT, ask_nodes
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.web.client import ask_nearest
from mldebug_agents.web.control_requests import post_to_agent

WAIT = "30s"


class FarNodes(NamedTuple):
    """Which other nodes are asked, and how."""

    transport: str
    request: FanoutRequest


def far_nodes(
    arguments: tuple[str, ...],
    slurm_job: str | None,
    hosts: str | None,
    there: str,
    wait: str | None,
) -> FarNodes | None:
    """The nodes that the options of `node_options` name; None where they name none. `arguments`: of `mldebug` there. Raises UsageError."""
    if slurm_job is not None and hosts is not None:
        raise UsageError("use --slurm-job or --hosts, not both", "choose one of them")
    target = slurm_job if slurm_job is not None else hosts
    if target is None:
        return None
    if not target:
        raise UsageError("no nodes are named", "is the shell variable empty that should name them?")
    request = FanoutRequest(
        target=target,
        python=there or sys.executable,
        arguments=arguments,
        timeout=answer_seconds(WAIT if wait is None else wait),
    )
    return FarNodes("slurm" if slurm_job is not None else "ssh", request)


def refuse_both(everywhere: bool) -> None:
    """Raise UsageError where --cluster was given beside --slurm-job or --hosts."""
    if everywhere:
        raise UsageError("use only one of --cluster, --slurm-job and --hosts", "choose one of them")


def view_nodes(
    spawner: Spawner, config: Config, nodes: FarNodes, progress: Progress = lambda *_: None
) -> ViewedNodes:
    """Have all nodes look at themselves, at the same time. Raises MldebugError where nobody can be asked at all."""
    _, replies = ask_nodes(spawner, config, nodes.transport, nodes.request, progress)
    answers = []
    silent = {one.name: one.reason or one.state for one in replies.failed}
    for name, reply in sorted(replies.replies.items()):
        if reply.view is None:
            silent[name] = f"mldebug {reply.version} there does not know the question"
            continue
        answers.append(msgspec.structs.replace(reply.view, node=name))
    return ViewedNodes(answers=tuple(answers), silent=silent)


def view_nodes_once(config: Config, nodes: FarNodes, progress: Progress) -> ViewedNodes:
    """`view_nodes` for a command that asks only once: with a process starter of its own, which ends afterwards."""
    with ended_by_signals(), Spawner(FANOUT) as spawner:
        return view_nodes(spawner, config, nodes, progress)


def cluster_view(config: Config, *, here_only: bool) -> ClusterView:
    """All nodes as this node's agent and its coordinators know them. Raises MldebugError where no agent answers, or it knows no others."""
    state_dir = ask_nearest(config.agent.state_dir, here_only=here_only).state_dir
    return post_to_agent(state_dir, CLUSTER_PATH, ClusterView, most=MAX_VIEW)


def exit_code(nodes: ViewedNodes, *, found: bool = False) -> ExitCode:
    """FOUND where something is wrong, else MISSING where a node did not answer: nobody knows that it is fine there."""
    if found:
        return ExitCode.FOUND
    return ExitCode.MISSING if nodes.silent else ExitCode.FINE


def send(view: NodeBrief) -> None:
    """Print what this node shows, for the mldebug that asked."""
    for line in encode(NodeReply(node=view.node, view=view)):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
