"""GPUs that are lost keep their place in the row: a process counts as it did when it started. Pure.

Without them local rank 3 of eight would be said to work on what was the fifth GPU, once the fourth is gone.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from mldebug.gpus.joining import Joined
from mldebug.gpus.readings import GpuReading, LostGpu, NodeGpus, NodeWatch

LOST = "its GPU is lost"
_Read = TypeVar("_Read", NodeGpus, NodeWatch)
_UNNAMED = "lost "  # stands for the uuid of a GPU that never told it


def located(told: _Read, slots: Iterable[str]) -> _Read:
    """Add the PCI addresses of GPUs that are lost and never told theirs, as NVML writes them.

    `slots`: those of all GPUs that the driver has (`0000:3b:00.0`). It counts in their order; where the GPUs that answer
    stand elsewhere, or are not all that it has, as in a container, nothing is added.
    """
    if all(one.bus_id for one in told.lost):
        return told
    ordered = sorted(map(_as_nvml, slots))
    answering = {one.index: one.bus_id for one in told.gpus}
    lost = {one.index for one in told.lost}
    if len(told.gpus) + len(told.lost) != len(ordered) or answering.keys() | lost != set(range(len(ordered))):  # fmt: skip
        return told
    if any(_as_nvml(address) != ordered[index] for index, address in answering.items()):
        return told
    places = (
        one if one.bus_id else msgspec.structs.replace(one, bus_id=ordered[one.index])
        for one in told.lost
    )
    return msgspec.structs.replace(told, lost=tuple(places))


def _as_nvml(address: str) -> str:
    domain, _, rest = address.upper().partition(":")
    return f"{domain:0>8}:{rest}"


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
