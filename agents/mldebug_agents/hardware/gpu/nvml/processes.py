"""Who has a compute context on a GPU."""

from typing import Any

from mldebug.hardware.gpu.readings import GpuProcess
from mldebug_agents.hardware.gpu.nvml import bounds
from mldebug_agents.hardware.gpu.nvml.calls import Ask

MAX_PROCESSES = 256
_NONE = 0xFFFFFFFF


def processes(ask: Ask) -> tuple[GpuProcess, ...] | None:
    """Compute processes, by pid; None where they are not told. Pids of other containers may be missing."""
    told = ask("processes", "nvmlDeviceGetComputeRunningProcesses_v3")
    if told is None:
        told = ask("processes", "nvmlDeviceGetComputeRunningProcesses_v2")
    if told is None:
        return None
    found = [_process(ask, one) for one in told[:MAX_PROCESSES]]
    return tuple(sorted((one for one in found if one), key=lambda one: one.pid))


def _process(ask: Ask, told: Any) -> GpuProcess | None:
    if not 0 < told.pid < 2**31:
        ask.note("processes", f"it says pid {told.pid}, which cannot be")
        return None
    memory = ask.convert("process memory", told.usedGpuMemory, bounds.size)
    instance = told.gpuInstanceId
    return GpuProcess(
        pid=told.pid,
        memory_bytes=memory,
        gpu_instance=None if instance == _NONE else int(instance),
    )
