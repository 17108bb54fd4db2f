"""Joins the readings of several vendors' GPUs into one for the node. Pure.

Each driver counts its GPUs from 0. On a node with one vendor these numbers stay. With several, the
second vendor's numbers go on after those of the first, so that "GPU 3" is one GPU.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from mldebug.core.model import Gap
from mldebug.hardware.gpu.readings import (
    GpuEvent,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
)

_Gpu = TypeVar("_Gpu", GpuWatch, GpuReading, LostGpu)
_Read = TypeVar("_Read", NodeWatch, NodeGpus)


def of_vendor(read: _Read, vendor: str, first: int) -> _Read:
    """One vendor's reading, with the vendor's name on each GPU and indices that begin at `first`."""
    if isinstance(read, NodeWatch):
        return msgspec.structs.replace(
            read,
            gpus=_named(read.gpus, vendor, first),
            lost=_named(read.lost, vendor, first),
            events=tuple(_renumbered(event, first) for event in read.events),
        )
    return msgspec.structs.replace(
        read, gpus=_named(read.gpus, vendor, first), lost=_named(read.lost, vendor, first)
    )


def highest_number(read: NodeWatch | NodeGpus) -> int:
    """The highest GPU index in a reading, lost GPUs included; -1 without GPUs."""
    return max((one.index for one in (*read.gpus, *read.lost)), default=-1)


def join_watches(reads: Sequence[NodeWatch], gaps: Sequence[Gap] = ()) -> NodeWatch:
    """Merge the quick readings of several GPU vendors (at least one, in order) into one of the node. `gaps`: why other vendors are missing."""
    return NodeWatch(
        at=max(one.at for one in reads),
        gpus=tuple(gpu for one in reads for gpu in one.gpus),
        lost=tuple(gpu for one in reads for gpu in one.lost),
        events=tuple(event for one in reads for event in one.events),
        gaps=(*(gap for one in reads for gap in one.gaps), *gaps),
        read_seconds=sum(one.read_seconds for one in reads),
        cpu_seconds=sum(one.cpu_seconds for one in reads),
    )


def join_full_reads(reads: Sequence[NodeGpus], gaps: Sequence[Gap] = ()) -> NodeGpus:
    """The full reading of the node from those of its vendors; parameters as of `join_watches`."""
    return NodeGpus(
        at=max(one.at for one in reads),
        driver_version=", ".join(one.driver_version for one in reads if one.driver_version),
        library_version=", ".join(one.library_version for one in reads if one.library_version),
        gpus=tuple(gpu for one in reads for gpu in one.gpus),
        lost=tuple(gpu for one in reads for gpu in one.lost),
        gaps=(*(gap for one in reads for gap in one.gaps), *gaps),
        read_seconds=sum(one.read_seconds for one in reads),
        cpu_seconds=sum(one.cpu_seconds for one in reads),
        unread="; ".join(one.reason for one in gaps),
    )


def _named(gpus: Sequence[_Gpu], vendor: str, first: int) -> tuple[_Gpu, ...]:
    return tuple(
        msgspec.structs.replace(one, index=one.index + first, vendor=vendor) for one in gpus
    )


def _renumbered(event: GpuEvent, first: int) -> GpuEvent:
    return msgspec.structs.replace(event, index=event.index + first)
