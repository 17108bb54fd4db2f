"""GPUs that are lost keep their place in the row: a process counts as it did when it started. Pure.

Without them local rank 3 of eight would be said to work on what was the fifth GPU, once the fourth is gone.
"""

import msgspec

from mldebug.gpus.joining import Joined
from mldebug.gpus.readings import GpuReading, LostGpu, NodeGpus

LOST = "its GPU is lost"
_UNNAMED = "lost "  # stands for the uuid of a GPU that never told it


def with_lost(node: NodeGpus) -> tuple[GpuReading, ...]:
    """All GPUs in their order, those that are lost with nothing but their names."""
    lost = [_place(one, node) for one in node.lost]
    everything = [*node.gpus, *lost]
    if all(one.bus_id for one in everything):
        return tuple(sorted(everything, key=lambda one: one.bus_id.lower()))
    return tuple(sorted(everything, key=lambda one: one.index))


def _place(one: LostGpu, node: NodeGpus) -> GpuReading:
    like = node.gpus[0].name if node.gpus else ""  # or the GPUs would seem to be of two kinds
    uuid = one.uuid or f"{_UNNAMED}{one.index}"
    return GpuReading(uuid=uuid, index=one.index, bus_id=one.bus_id, name=like)


def named(told: Joined) -> Joined:
    """The same without ranks on a GPU that never told its name."""
    unnamed = {one.rank: LOST for one in told.ranks if one.uuid.startswith(_UNNAMED)}
    ranks = tuple(one for one in told.ranks if one.rank not in unnamed)
    return msgspec.structs.replace(told, ranks=ranks, unknown=told.unknown | unnamed)
