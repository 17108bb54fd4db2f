"""Looks at this node for commands: asks its agent or, where none runs, finds the jobs and reads GPUs and filesystems itself."""

import sys
import time

from mldebug.config.schema import Config
from mldebug.core.model import NodeBrief
from mldebug.status.gpu_view import GpuOverview
from mldebug.status.node_views import node_view
from mldebug.storage.filesystems.state import StorageState
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.cluster.fanout.abandonment import end_without_reader, ended_by_signals
from mldebug_agents.cluster.node_views import send
from mldebug_agents.hardware.one_shot import OneShotReader
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.storage.collectors import storage_collectors
from mldebug_agents.storage.monitor import look_once
from mldebug_agents.web.client import AgentAnswer, ask_nearest

GPU_SECONDS = (
    5.0  # that a driver has to answer; one that loads firmware first is read at the next look
)
GPUS_EVERY, STORAGE_EVERY = 5.0, 60.0  # seconds between two readings of our own


class NodeViewer:
    """Takes views of this node for a command, from its agent where one runs.

    `jobs`: search for the jobs even if an agent knows them, because some facts are in their processes alone, such as the key that a
    run has on all its nodes. `gpus`, `storage`: where no agent runs, read the GPUs and the filesystems here.
    """

    def __init__(
        self,
        tools: NodeTools,
        config: Config,
        *,
        here_only: bool,
        jobs: bool,
        gpus: bool = False,
        storage: bool = False,
    ) -> None:
        self._tools, self._config, self._here_only = tools, config, here_only
        self._jobs, self._gpus, self._storage = jobs, gpus, storage
        self._overview: GpuOverview | None = None
        self._filesystems: StorageState | None = None
        self._gpus_at = self._storage_at = -float("inf")  # monotonic seconds

    def look(self) -> NodeBrief:
        """Take one view of the node as it is now."""
        answer = ask_nearest(self._config.agent.state_dir, here_only=self._here_only).answer
        agent = answer.snapshot
        if agent is not None and not self._jobs:
            return node_view(agent.node, time.time(), agent=agent)
        found = self._tools.capture.finder.find()
        if agent is None:
            self._read(found, answer)
        return node_view(
            self._tools.context.node,
            time.time(),
            found.all,
            agent,
            trouble=answer.trouble,
            overview=self._overview if agent is None else None,
            storage=self._filesystems,
            gaps=found.gaps,
        )

    def _read(self, found: Discovery, answer: AgentAnswer) -> None:
        """Read what no agent has read. Where one runs that does not answer, the GPUs are left to it."""
        now, tools = time.monotonic(), self._tools
        nobody = answer.outcome == "none" and not (self._overview and self._overview.no_library)
        if self._gpus and nobody and now - self._gpus_at >= GPUS_EVERY:
            self._gpus_at = now
            reader = OneShotReader(tools.context, tools.gpus, found, GPU_SECONDS)
            self._overview = reader.take()
        if self._storage and now - self._storage_at >= STORAGE_EVERY:
            self._storage_at = now
            collectors = storage_collectors(tools.context, tools.filesystem_probe)
            self._filesystems = look_once(collectors, found.jobs)


def send_view(config: Config, *, here_only: bool, gpus: bool = False, storage: bool = False) -> None:  # fmt: skip
    """Look once and print the view, for the mldebug that asked from another node."""
    with ended_by_signals(), open_tools(config) as tools:
        end_without_reader(sys.stdout.fileno())  # a thread: after the process starter has forked
        look = NodeViewer(tools, config, here_only=here_only, jobs=True, gpus=gpus, storage=storage)
        send(look.look())
