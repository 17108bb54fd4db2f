"""The tools with which an agent, or a command that runs without one, reads this node.

All of them start their children through one helper process.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from mldebug.config.schema import Config
from mldebug_agents.capture.nccl_ras import child as ras_child
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.cluster.peers.net import identity
from mldebug_agents.hardware.gpu.child import messages as gpu_messages
from mldebug_agents.hardware.gpu.child import server as gpu_server
from mldebug_agents.hardware.gpu.node_reader import NodeReader, node_reader
from mldebug_agents.incidents import node_inspection
from mldebug_agents.jobs.hook import request_child, switches
from mldebug_agents.state import client as state_client
from mldebug_agents.state import server as state_server
from mldebug_agents.storage.child import client as filesystem_client
from mldebug_agents.storage.child import server as filesystem_server
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.dir_sizes import entry as dir_sizes_child
from mldebug_agents.storage.dir_sizes import messages as dir_sizes_messages
from mldebug_agents.storage.usage import child as usage_child
from mldebug_agents.storage.usage import messages as usage_messages
from mldebug_agents.system.child.helper import Workers
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.context import Context, open_context


def _inspect(connection: socket.socket) -> None:
    """The child that inspects ranks for others. It opens these tools itself, and is imported in the child only."""
    import_module("mldebug_agents.agent.inspection_child").serve(connection, open_tools)


CHILDREN: Workers = {
    node_inspection.NAME: _inspect,
    state_client.NAME: state_server.serve,
    gpu_messages.NAME: gpu_server.serve,
    switches.NAME: switches.serve,
    request_child.NAME: request_child.serve,
    ras_child.NAME: ras_child.serve,
    filesystem_client.NAME: filesystem_server.serve,
    identity.NAME: identity.serve,
    dir_sizes_messages.NAME: dir_sizes_child.serve,
    usage_messages.NAME: usage_child.serve,
}


@dataclass(frozen=True, slots=True)
class NodeTools:
    """The tools with which an agent or a command reads this node: context, captures, GPUs, filesystems."""

    context: Context
    capture: CaptureTools
    gpus: NodeReader
    filesystem_probe: MountClient

    def leftovers(self) -> tuple[Leftover, ...]:
        """Child processes of the tools that could not be ended; a later agent counts them until they are gone."""
        return (*self.context.spawner.leftovers, *self.gpus.leftovers())


class CurrentConfig:
    """Holds the configuration in use, so that all parts see it change when the agent reloads it."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def read(self) -> Config:
        """The configuration in use now."""
        return self._config

    def replace(self, config: Config) -> None:
        """Use this configuration from now on."""
        self._config = config


@contextmanager
def open_tools(
    config: Config | CurrentConfig, root: str = "/", *, probes: bool = False
) -> Iterator[NodeTools]:
    """A context that starts the helper process, opens all tools, and closes them at its end. Enter
    it before any thread is started.

    `root`: where the host's `/` is mounted (in a container). `probes`: also count the processes of
    `mldebug probe` as ranks.
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
