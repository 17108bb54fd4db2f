"""The tools with which an agent, or a command that runs without one, reads this node.

All of them start their children through one helper process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mldebug.config.schema import Config
from mldebug_agents.agent.children import CHILDREN
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.hardware.gpu.node_reader import NodeReader, node_reader
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.context import Context, open_context
from mldebug_agents.system.spawn import Spawner


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
        """Return the configuration that is in use at this moment."""
        return self._config

    def replace(self, config: Config) -> None:
        """Use this configuration from now on."""
        self._config = config


@contextmanager
def open_tools(
    config: Config | CurrentConfig,
    root: str = "/",
    *,
    probes: bool = False,
    spawner: Spawner | None = None,
) -> Iterator[NodeTools]:
    """A context that starts the helper process, opens all tools, and closes them at its end. Enter
    it before any thread is started.

    `root`: where the host's `/` is mounted (in a container). `probes`: also count the processes of
    `mldebug probe` as ranks. `spawner`: one that knows `CHILDREN`; None to make it now. It is closed at the end.
    """
    current = config if isinstance(config, CurrentConfig) else CurrentConfig(config)
    with open_context(current.read, CHILDREN, root, spawner) as context:
        gpus = node_reader(context.spawner, context.host, context.config.gpus)
        filesystem_probe = MountClient(context.spawner)
        try:
            yield NodeTools(context, CaptureTools(context, probes=probes), gpus, filesystem_probe)
        finally:
            gpus.close()
            filesystem_probe.close()
