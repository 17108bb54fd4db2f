"""The tools by which an agent, or a command that runs without one, looks at this node; the helper process is their root."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mldebug.config.schema import Config
from mldebug_agents.capture.nccl_ras import child as ras_child
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.cluster.peers.net import identity
from mldebug_agents.hardware.gpu.child import messages as gpu_messages
from mldebug_agents.hardware.gpu.child import server as gpu_server
from mldebug_agents.hardware.gpu.node_reader import NodeReader, node_reader
from mldebug_agents.jobs.hook import switches
from mldebug_agents.state import client as state_client
from mldebug_agents.state import server as state_server
from mldebug_agents.storage.child import client as filesystem_client
from mldebug_agents.storage.child import server as filesystem_server
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.dir_sizes import entry as dir_sizes_child
from mldebug_agents.storage.dir_sizes import messages as dir_sizes_messages
from mldebug_agents.system.child.helper import Workers
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.context import Context, open_context

CHILDREN: Workers = {
    state_client.NAME: state_server.serve,
    gpu_messages.NAME: gpu_server.serve,
    switches.NAME: switches.serve,
    ras_child.NAME: ras_child.serve,
    filesystem_client.NAME: filesystem_server.serve,
    identity.NAME: identity.serve,
    dir_sizes_messages.NAME: dir_sizes_child.serve,
}


@dataclass(frozen=True, slots=True)
class NodeTools:
    """The tools by which an agent or a command looks at this node."""

    context: Context
    capture: CaptureTools
    gpus: NodeReader
    filesystem_probe: MountClient

    def leftovers(self) -> tuple[Leftover, ...]:
        """Children that could not be ended, as records for a later agent."""
        return (*self.context.spawner.leftovers, *self.gpus.leftovers())


class CurrentConfig:
    """The configuration that holds now; `reload` of an agent replaces it."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def read(self) -> Config:
        """The newest configuration."""
        return self._config

    def replace(self, config: Config) -> None:
        """Use this configuration from now on."""
        self._config = config


@contextmanager
def open_tools(
    config: Config | CurrentConfig, root: str = "/", *, probes: bool = False
) -> Iterator[NodeTools]:
    """Start the helper process and open all tools; they are closed with the block. Open them before any thread is started.

    `root`: where the host's / is seen. `probes`: processes of a probe count as ranks, too.
    """
    current = config if isinstance(config, CurrentConfig) else CurrentConfig(config)
    with open_context(current.read, CHILDREN, root) as context:
        gpus = node_reader(context.spawner, context.host, context.config.gpus)
        filesystem_probe = MountClient(context.spawner)
        try:
            yield NodeTools(context, CaptureTools(context, probes=probes), gpus, filesystem_probe)
        finally:
            gpus.close()
            filesystem_probe.close()
