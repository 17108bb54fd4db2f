"""Adds to the samples of a rank what its GPU says of clocks, limits and memory: for the cause why a rank is slow. Pure."""

import msgspec

from mldebug.goodput.evidence import GPU_LIMITS
from mldebug.goodput.rank_shares import RankShares
from mldebug.hardware.gpu.readings import GpuReading


def with_gpu(shares: RankShares, gpu: GpuReading, pid: int) -> RankShares:
    """The shares with the readings of the GPU on which the process `pid` of the rank works."""
    used = [one.memory_bytes for one in gpu.processes or () if one.pid == pid and one.memory_bytes]
    evidence = msgspec.structs.replace(
        shares.evidence,
        gpu_clock=gpu.clock_hertz.get("sm"),
        gpu_limits=tuple(sorted(set(gpu.clock_events or ()) & GPU_LIMITS.keys())),
        gpu_power_limit=gpu.power_limit_watts,
        gpu_memory=used[0] if used else None,
    )
    return msgspec.structs.replace(shares, evidence=evidence)
