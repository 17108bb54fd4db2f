"""Adds to the samples of a rank what its GPU says of clocks, limits and memory: for the cause why a rank is slow. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from mldebug.goodput.evidence import GPU_LIMITS, RankShares
from mldebug.hardware.gpu.readings import GpuReading
from mldebug_agents.hardware.gpu.neighbours import GpuNeighbour


def with_gpu(
    shares: RankShares,
    gpu: GpuReading,
    pid: int,
    neighbours: Mapping[str, GpuNeighbour | None] = MappingProxyType({}),
    grown: float = 0.0,
) -> RankShares:
    """The shares with the readings of the GPU on which the process `pid` of the rank works. `neighbours`: by uuid of the GPUs of which this is
    known, who else computes there. `grown`: unix time when its memory there became larger; 0.0: it did not.
    """
    listed = any(one.pid == pid for one in gpu.processes or ())  # the driver counts as we do
    neighbour = neighbours.get(gpu.uuid)
    used = [one.memory_bytes for one in gpu.processes or () if one.pid == pid and one.memory_bytes]
    evidence = msgspec.structs.replace(
        shares.evidence,
        gpu_clock=gpu.clock_hertz.get("sm"),
        gpu_limits=tuple(sorted(set(gpu.clock_events or ()) & GPU_LIMITS.keys())),
        gpu_power_limit=gpu.power_limit_watts,
        gpu_memory=used[0] if used else None,
        gpu_memory_since=grown if used else 0.0,
        gpu_neighbour=(neighbour.name if neighbour else "")
        if listed and gpu.uuid in neighbours
        else None,
        gpu_neighbour_since=neighbour.since if neighbour else 0.0,
    )
    return msgspec.structs.replace(shares, evidence=evidence)
