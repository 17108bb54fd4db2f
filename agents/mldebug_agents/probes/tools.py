"""The means by which a probe looks at its node: whether it is idle, and which GPUs it has."""

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
    """How a probe looks at its node. `finder`: finds the training jobs there; `gpus`: reads its GPUs in a child process."""

    context: Context
    gpus: NodeReader
    finder: RankFinder


@contextmanager
def open_probe_tools(*, probes: bool = False) -> Iterator[ProbeTools]:
    """A context that opens what a probe needs to look at its node: the helper process that starts all others, the GPU
    reader, and the finder of training jobs. All are closed at its end. `probes`: processes of a probe are found as
    ranks, too.
    """
    config = load_config(None)
    with open_context(lambda: config, CHILDREN) as context:
        gpus = node_reader(context.spawner, context.host, config.gpus)
        try:
            yield ProbeTools(context, gpus, CaptureTools(context, probes=probes).finder)
        finally:
            gpus.close()
