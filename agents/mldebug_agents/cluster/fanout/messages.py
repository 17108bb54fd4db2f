"""What the main process and the child that reaches nodes send each other over a `ChildLink`."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from mldebug.cli.durations import bounded_duration
from mldebug.core.model import QueriedNode
from mldebug_agents.system.spawn import ProgramStarter

MIN_WAIT, MAX_WAIT = 1.0, 1_800.0  # seconds
MOST_TOGETHER = 1024  # nodes that can be asked at the same moment
NAME = "fanout"  # of the worker that the process starter forks


class FanoutOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Run `command`, a line for a shell: by ssh on each of `nodes`, or on this host where there are none."""

    command: str
    nodes: tuple[str, ...] = ()
    timeout: float = 60.0  # seconds for each node
    grace: float = (
        6.0  # seconds after which a command is killed that its own `timeout` has not ended
    )
    fanout: int = 64  # connections at once
    connect_timeout: float = 10.0
    ssh: str = "ssh"
    ssh_options: str = ""
    topology: str = ""  # file of ClusterShell's tree; "": every node is reached from here
    python: str = ""  # that a gateway of the tree runs ClusterShell with


class FanoutNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of output, an error, or the end of a command. Its text comes from other nodes: cut to a length, and not cleaned."""

    node: str = ""  # "": of the command that runs here
    line: str = ""  # of a reply
    error: str = ""  # a line of stderr; with `code`, the last one
    code: int | None = None  # it has ended there, with this exit code
    late: bool = False  # its time was over before it ended
    over: bool = False  # all have ended
    trouble: str = ""  # why nothing could be run at all


class FanoutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the nodes of one job are reached."""

    order: FanoutOrder
    nodes: tuple[str, ...]  # all that are asked
    absent: tuple[QueriedNode, ...] = ()  # of whom it is known already that they cannot answer
    listed_by: str = ""  # the scheduler that says that these are all


class FanoutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes and jobs a user wants to be captured, and how. `together`: all nodes at the same moment, for they wait for each other."""

    target: str  # a job id, or a list of nodes
    python: str
    arguments: tuple[str, ...]  # of `mldebug` there
    timeout: float
    together: bool = False


class Transport(Protocol):
    """A way to run one command on many nodes: a file in `transports/`."""

    def plan(self, wanted: FanoutRequest, starter: ProgramStarter) -> FanoutPlan:
        """How the wanted nodes are to be reached. Raises UsageError or ToolError where they cannot be."""
        ...

    def explain(self, plan: FanoutPlan, errors: Iterable[str]) -> Mapping[str, QueriedNode]:
        """Why nodes have not answered, by node, from what the command that ran on this host wrote to stderr."""
        ...

    def ended(self, node: str, code: int, error: str) -> QueriedNode:
        """Why one node has not answered, from the exit code and the last error line of its command."""
        ...


def answer_seconds(wait: str) -> float:
    """The seconds that a node has to answer, from the text of `--wait`, such as 60s. Raises UsageError for a time that is none, or is
    not between 1 s and 30 minutes.
    """
    return bounded_duration("--wait", wait, MIN_WAIT, MAX_WAIT, "60s or 2m")
