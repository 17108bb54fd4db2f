"""The child process that inspects ranks of this node for a person elsewhere (`mldebug_agents.incidents.node_inspection`)."""

import resource
import socket

import msgspec

from mldebug.capture.inspection import within
from mldebug.cluster.slimming import slim
from mldebug.cluster.wire import NodeReply, pack
from mldebug.config.schema import Config
from mldebug.core.errors import MldebugError
from mldebug.core.yaml_reader import parse
from mldebug_agents.capture.inspection import inspect_ranks
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.cluster.fanout.abandonment import end_without_reader, ended_by_signals
from mldebug_agents.incidents.manual import choose, look
from mldebug_agents.incidents.node_inspection import ENDING, InspectionOutcome, InspectionTask
from mldebug_agents.incidents.step_orders import chosen_ranks
from mldebug_agents.system.child.helper import Workers
from mldebug_agents.system.child.link import ChildLink
from mldebug_agents.system.context import open_context

MEMORY = (
    3 << 30
)  # bytes of address space: a trace is a job's own, and the agent's service has a limit for all its processes


def serve(connection: socket.socket, children: Workers) -> None:
    """The child's main function: carries out one task, and ends. `children`: what it may start itself."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    link = ChildLink(connection, msgspec.msgpack.Decoder(InspectionTask))
    with ended_by_signals():
        link.send(carry_out(link.receive(), children, connection.fileno()))


def carry_out(
    task: InspectionTask, children: Workers, waits: int | None = None
) -> InspectionOutcome:
    """Inspect the ranks. Never raises for what cannot be done: errors become the outcome.

    `waits`: the descriptor of the connection to the agent. When the agent hangs up, SystemExit ends this, and takes back what was asked of ranks.
    """
    try:
        config = parse(task.config, "the agent's configuration", Config)
        with open_context(lambda: config, children) as context:
            if waits is not None:  # a thread: only now, as the context has forked
                end_without_reader(waits, ENDING)
            return _inspected(CaptureTools(context, probes=False), task)
    except MldebugError as error:
        return InspectionOutcome(error=error.message)
    except MemoryError:
        return InspectionOutcome(error="what its ranks have written takes too much memory")


def _inspected(tools: CaptureTools, task: InspectionTask) -> InspectionOutcome:
    found = tools.finder.find()
    (job,) = choose(found, task.pid, None)
    ranks = chosen_ranks(job, task.ranks, tools.requests)
    answers = within(inspect_ranks(tools, ranks, task.options), task.most)
    capture = look(tools, job, found)
    reply = NodeReply(node=tools.context.node, captures=(capture,), gaps=found.gaps)
    return InspectionOutcome(found=answers, reply=pack(slim(reply)))
