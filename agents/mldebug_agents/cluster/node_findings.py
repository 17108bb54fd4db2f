"""Asks all nodes of a job what may keep it from starting or running well; each runs `mldebug preflight --send`, and nothing is installed there."""

import time

import msgspec

from mldebug.config.schema import Config
from mldebug.probes.preflight.findings import CheckedNode
from mldebug_agents.cluster.fanout.abandonment import ended_by_signals
from mldebug_agents.cluster.fanout.collector import Progress
from mldebug_agents.cluster.fanout.messages import FanoutRequest
from mldebug_agents.cluster.node_captures import FANOUT, ask_nodes
from mldebug_agents.system.spawn import Spawner


class NodesChecked(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of all nodes that gave one, and why the others did not, by name."""

    answers: tuple[CheckedNode, ...]
    silent: dict[str, str]


class ArrivalTimes:
    """A `Progress` that notes when each node had answered (`came`: unix time by node), and passes each call on to `progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._missing: set[str] = set()
        self.began = time.time()
        self.came: dict[str, float] = {}

    def __call__(self, answered: int, missing: tuple[str, ...]) -> None:
        """Called at each news with the number of answers, and the names of nodes without one."""
        self.came |= dict.fromkeys(self._missing.difference(missing), time.time())
        self._missing = set(missing)
        self._progress(answered, missing)


def check_nodes(
    config: Config, transport: str, wanted: FanoutRequest, progress: Progress
) -> NodesChecked:
    """Have all nodes looked at, at the same time. Raises MldebugError where nobody can be asked at all."""
    times = ArrivalTimes(progress)
    with ended_by_signals(), Spawner(FANOUT) as spawner:
        _, replies = ask_nodes(spawner, config, transport, wanted, times)
    answers = []
    silent = {one.name: one.reason or one.state for one in replies.failed}
    for name, reply in sorted(replies.replies.items()):
        if reply.findings is None:
            silent[name] = f"mldebug {reply.version} there knows no preflight"
            continue
        found = msgspec.structs.replace(reply.findings, node=name)
        answers.append(
            CheckedNode(
                findings=found,
                sent=times.began + found.seconds,
                came=times.came.get(name, time.time()),
            )
        )
    return NodesChecked(answers=tuple(answers), silent=silent)
