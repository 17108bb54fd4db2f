"""Whether a GPU has joined its NVLink fabric, which the Fabric Manager sets up (Hopper and newer). Queried at one full read in
four.
"""

import ctypes
from typing import Any

from mldebug.hardware.gpu.readings import GpuFabric
from mldebug_agents.hardware.gpu.nvml.calls import Ask

STATES = ("not_supported", "not_started", "in_progress", "completed")
EVERY = 4
_KEPT = "fabric"
_TRUE = 1
# bits of the health mask, two for each: 0 not told, 1 yes, 2 no
_HEALTH = {"degraded_bandwidth": 0, "route_recovery": 2, "route_unhealthy": 4, "access_timeout_recovery": 6}  # fmt: skip


def fabric(ask: Ask) -> GpuFabric | None:
    """The state of the GPU's fabric; None where it has none, or does not tell."""
    kept = ask.device.kept
    if _KEPT not in kept or ask.device.turn(ask.device.index, EVERY):
        kept[_KEPT] = _read(ask)
    found: GpuFabric | None = kept[_KEPT]
    return found


def _read(ask: Ask) -> GpuFabric | None:
    layout = getattr(ask.nvml, "c_nvmlGpuFabricInfo_v2_t", None)
    if layout is None:
        return None
    answer = layout()  # with its version
    # the binding passes on what it is given: the struct itself would end this process
    done = ask("fabric", "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(answer))
    return parsed(answer) if done is not None else None


def parsed(answer: Any) -> GpuFabric | None:
    """The fabric state in the driver's answer; None for a board without a fabric, and for a state that is not known here."""
    if not 0 < answer.state < len(STATES):
        return None
    mask = answer.healthMask
    troubles = [name for name, shift in _HEALTH.items() if mask >> shift & 3 == _TRUE]
    return GpuFabric(state=STATES[answer.state], status=answer.status, troubles=tuple(troubles))
