"""What a probe looks at its node with: is it idle, and which GPUs has it?"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mldebug.config.schema import load_config
from mldebug_agents.capture.nccl_ras import child as ras_child
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.hardware.gpu.child import messages as gpu_messages
from mldebug_agents.hardware.gpu.child import server as gpu_server
from mldebug_agents.hardware.gpu.node_reader import NodeReader, node_reader
from mldebug_agents.jobs.ranks.discovery import RankFinder
from mldebug_agents.system.child.helper import Workers
from mldebug_agents.system.context import Context, open_context

CHILDREN: Workers = {gpu_messages.NAME: gpu_server.serve, ras_child.NAME: ras_child.serve}


@dataclass(frozen=True, slots=True)
class ProbeTools:
    """`finder`: the training jobs of this node. `gpus`: its GPUs, read by a child."""

    context: Context
    gpus: NodeReader
    finder: RankFinder


@contextmanager
def open_probe_tools(*, probes: bool = False) -> Iterator[ProbeTools]:
    """Start the helper process; everything is closed with the block. `probes`: processes of a probe count as ranks, too."""
    config = load_config(None)
    with open_context(lambda: config, CHILDREN) as context:
        gpus = node_reader(context.spawner, context.host, config.gpus)
        try:
            yield ProbeTools(context, gpus, CaptureTools(context, probes=probes).finder)
        finally:
            gpus.close()
