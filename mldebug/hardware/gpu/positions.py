"""Joins ranks with GPUs by position although a GPU was lost since: each lost GPU keeps its place in the numbering.

Pure.

A process numbers the GPUs as they were when it started. Were a lost GPU left out, local rank 3 of eight would be joined with
the fifth GPU once the fourth is lost.
"""

from collections.abc import Collection, Iterable
from typing import TypeVar

import msgspec

from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import NVIDIA, GpuReading, LostGpu, NodeGpus, NodeWatch

LOST = "its GPU does not answer"
_STRENGTH = tuple(reversed(JoinEvidence))
_Read = TypeVar("_Read", NodeGpus, NodeWatch)
_UNNAMED = "lost "  # stands for the uuid of a GPU that never told it


def located(read: _Read, slots: Iterable[str]) -> _Read:
    """The reading, with the PCI addresses (in NVML's form) of lost GPUs that never gave theirs.

    `slots`: addresses of all GPUs that the NVIDIA driver has (`0000:3b:00.0`), which it numbers in
    their order. Nothing is added where the GPUs that answer do not fit this, as in a container that
    sees only some.
    """
    if all(one.bus_id for one in read.lost):
        return read
    ordered = sorted(map(as_nvml, slots))
    here = [one for one in read.gpus if one.vendor == NVIDIA]
    gone = [one for one in read.lost if one.vendor == NVIDIA]
    answering = {one.index: one.bus_id for one in here}
    lost = {one.index for one in gone}
    if len(here) + len(gone) != len(ordered) or answering.keys() | lost != set(range(len(ordered))):  # fmt: skip
        return read
    if any(as_nvml(address) != ordered[index] for index, address in answering.items()):
        return read
    places = (
        msgspec.structs.replace(one, bus_id=ordered[one.index])
        if one.index in lost and not one.bus_id
        else one
        for one in read.lost
    )
    return msgspec.structs.replace(read, lost=tuple(places))


def as_nvml(address: str) -> str:
    """A PCI address as NVML writes it: `00000000:3B:00.0`; "" stays so."""
    if not address:
        return ""
    domain, _, rest = address.upper().partition(":")
    return f"{domain:0>8}:{rest}"


def with_lost(node: NodeGpus) -> tuple[GpuReading, ...]:
    """All GPUs in order of their PCI addresses (of their indices, where an address is missing); of lost ones only the names are known."""
    lost = [_place(one, node) for one in node.lost]
    everything = [*node.gpus, *lost]
    if all(one.bus_id for one in everything):
        return tuple(sorted(everything, key=lambda one: one.bus_id.lower()))
    return tuple(sorted(everything, key=lambda one: one.index))


def _place(one: LostGpu, node: NodeGpus) -> GpuReading:
    # or the GPUs would seem to be of two kinds
    like = next((gpu.name for gpu in node.gpus if gpu.vendor == one.vendor), "")
    uuid = one.uuid or f"{_UNNAMED}{one.index}"
    return GpuReading(uuid=uuid, index=one.index, bus_id=one.bus_id, name=like, vendor=one.vendor)


def named(joined: RankGpuMap) -> RankGpuMap:
    """The map without ranks on lost GPUs whose uuid was never read; those ranks are listed as unknown."""
    unnamed = {rank.rank: LOST for rank in joined.ranks if rank.uuid.startswith(_UNNAMED)}
    ranks = tuple(one for one in joined.ranks if one.rank not in unnamed)
    return msgspec.structs.replace(joined, ranks=ranks, unknown=joined.unknown | unnamed)


def remembering(now: RankGpuMap, before: RankGpuMap | None, present: Collection[str]) -> RankGpuMap:
    """Return the newest map of ranks to GPUs, in which a rank keeps its earlier entry where that had stronger evidence and
    the rank's process is still the same. `present`: uuids of GPUs that answer.

    This is needed because a lost GPU lists no process any more, and a mere convention must not move its ranks to other
    GPUs.
    """
    if before is None:
        return now
    earlier = {one.rank: one for one in before.ranks if _same(one.rank, now, before)}
    newest = {one.rank: one for one in now.ranks}
    ranks = {
        rank: _better(newest.get(rank), earlier.get(rank), present) for rank in newest | earlier
    }
    unknown = {rank: why for rank, why in now.unknown.items() if rank not in ranks}
    kept = tuple(one for _, one in sorted(ranks.items()) if one is not None)
    return msgspec.structs.replace(now, ranks=kept, unknown=unknown)


def _same(rank: int, now: RankGpuMap, before: RankGpuMap) -> bool:
    """Is it the process of before?"""
    here = rank in now.unknown or now.of_rank(rank) is not None
    return here and now.processes.get(rank) == before.processes.get(rank)


def _better(
    now: RankGpu | None, before: RankGpu | None, present: Collection[str]
) -> RankGpu | None:
    """What the driver said of a process holds until it says another thing; of a GPU that is lost, what nothing stronger says.

    An only open device does not hold: a process that starts opens them one by one.
    """
    if now is None or before is None:
        return now or before
    mine, its = _STRENGTH.index(now.evidence), _STRENGTH.index(before.evidence)
    if mine < its and before.evidence is JoinEvidence.COMPUTE_PROCESS:
        return before
    if mine <= its and before.uuid not in present:
        return before
    lost = [one for one in before.also if one not in present and one not in now.also]
    return msgspec.structs.replace(now, also=(*now.also, *lost))
