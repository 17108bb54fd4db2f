"""Captures of many nodes: what this node answers when it is asked for its own, and the reports made of all answers.

Nothing is installed or written on the other nodes: each runs `mldebug dump --send`, which captures its own ranks and prints them.
"""

import os
import socket
import time
from importlib import import_module
from pathlib import Path

from mldebug.cluster.merge import MergedRuns, NodeReplies, merge, placed
from mldebug.cluster.slimming import slim
from mldebug.cluster.wire import NodeReply
from mldebug.config.schema import Config
from mldebug.core.errors import AccessError, MissingError, MldebugError, NothingFoundError
from mldebug.core.model import Job, QueriedNodes
from mldebug.core.plugins import create
from mldebug.core.ranksets import fold_nodes, shorten_ranks
from mldebug.diagnosis.classify.nodes import by_reason
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.cluster.fanout.abandonment import ended_by_signals
from mldebug_agents.cluster.fanout.collector import Progress, ask_all
from mldebug_agents.cluster.fanout.messages import NAME, FanoutPlan, FanoutRequest, Transport
from mldebug_agents.hardware.gpu.node_reader import NodeReader
from mldebug_agents.incidents.manual import Taken, look, look_beside, write_case
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import parse_environ
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner

MAX_ENVIRON = 1 << 20
MAX_LISTED = 8


def _serve(connection: socket.socket) -> None:
    """The child that reaches nodes. ClusterShell is imported there alone, which `status` of this node does not need: 60 ms."""
    import_module("mldebug_agents.cluster.fanout.child").serve(connection)


FANOUT = {NAME: _serve}


def reply(
    tools: CaptureTools, gpus: NodeReader, slurm_job: str | None, wanted: str | None
) -> NodeReply:
    """The captures of this node's jobs; with `slurm_job` only of that Slurm job, with `wanted` only of jobs with that name or
    id. Cut to a limited size (see `slimming`).
    """
    found = tools.finder.find()
    jobs = [job for job in found.all if wanted in (None, job.name) or job.id == wanted]
    if slurm_job is not None:
        jobs = [
            one for one in jobs if _is_of(one, slurm_job, tools.context.host, tools.context.reader)
        ]
    beside = look_beside(tools, gpus, found, here_only=False)
    return slim(
        NodeReply(
            node=os.environ.get("SLURMD_NODENAME") or tools.context.node
            if slurm_job
            else tools.context.node,
            machine=machine(),
            captures=tuple(look(tools, one, found, beside) for one in jobs),
            gaps=found.gaps,
            hidden=any(gap.way_out for gap in found.gaps),
            uid=os.geteuid(),
        )
    )


def _is_of(job: Job, slurm_job: str, host: Host, reader: Reader) -> bool:
    """Does any of its ranks say so?"""
    pids = [rank.pid for rank in job.ranks]
    if job.waits is not None and job.launcher_pid is not None:
        pids = [job.launcher_pid]
    paths = [f"{host.proc}/{pid}/environ" for pid in pids]
    for answer in reader.read_many(paths, max_bytes=MAX_ENVIRON).values():
        if isinstance(answer, bytes) and parse_environ(answer).get("SLURM_JOB_ID") == slurm_job:
            return True
    return False


def machine() -> str:
    """An id of this machine that does not depend on its name (boot id and PID namespace); a container with a PID namespace of
    its own counts as a machine. "" where it cannot be read.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""  # no such files: then only names tell machines apart


# --- asking ----------------------------------------------------------------------------------------


def capture_all(
    config: Config, transport: str, wanted: FanoutRequest, node: str, progress: Progress
) -> list[Taken]:
    """Capture on all nodes and write one report for each run. Raises MldebugError where no node sent a capture."""
    detected = time.time()
    with ended_by_signals(), Spawner(FANOUT) as spawner:
        plan, answers = ask_nodes(spawner, config, transport, wanted, progress)
    merged = merge(answers, plan.listed_by)
    topology = config.cluster.topology
    if not merged.runs:
        raise _nothing(merged, answers, plan)
    state_dir = config.agent.state_dir
    return [
        write_case(state_dir, run.captures, detected, placed(run.queried, topology), node)
        for run in merged.runs
    ]


def ask_nodes(
    spawner: Spawner, config: Config, name: str, wanted: FanoutRequest, progress: Progress
) -> tuple[FanoutPlan, NodeReplies]:
    """Run one command on all nodes by the transport `name`. Returns how the nodes were to be reached, and their replies.

    This is the only way by which commands reach other nodes. `spawner`: one made with the workers in `FANOUT`, in which the
    transport runs. Raises MldebugError where not a single node can be asked.
    """
    set_up = next((one for one in config.transports.values() if one.kind == name), None)
    transport: Transport = create("transports", name, set_up.options if set_up else None)
    plan = transport.plan(wanted, spawner)
    return plan, ask_all(spawner, plan, transport, progress)


def _nothing(merged: MergedRuns, answers: NodeReplies, plan: FanoutPlan) -> MldebugError:
    """Why there is nothing to judge."""
    reasons = by_reason(merged.queried.nodes)
    lines = [f"{shorten_ranks(names, 60)}: {reason}" for names, reason in reasons[:MAX_LISTED]]
    lines += [f"{name}: {gap}" for name, gap in _hidden(answers)][:MAX_LISTED]
    if bare := merged.queried.named("answered"):
        lines.append(f"no training job was found on {shorten_ranks(fold_nodes(bare), 60)}")
    ways = [node.way_out for node in merged.queried.nodes if node.way_out]
    ways += [gap.way_out for one in answers.replies.values() for gap in one.gaps if gap.way_out]
    queried = fold_nodes(plan.nodes)
    message = f"no run was found on {shorten_ranks(queried, 60)}"
    hidden = any(one.hidden for one in answers.replies.values())
    kind: type[MldebugError] = NothingFoundError
    if hidden:
        kind = AccessError
    elif len(answers.replies) < len(plan.nodes):
        kind = MissingError
    return kind("\n".join((message, *lines)), next(iter(ways), _see(merged.queried, plan)))


def _hidden(answers: NodeReplies) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, one in sorted(answers.replies.items()):
        found += [(name, gap.reason) for gap in one.gaps[:1]]
    return found


def _see(queried: QueriedNodes, plan: FanoutPlan) -> str:
    if bare := queried.named("answered"):
        return f"`mldebug status` on {bare[0]} shows what is seen there"
    return f"look at {plan.nodes[0]} by hand: is it up, and may you log in there?"
