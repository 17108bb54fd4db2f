"""The watch read: utilization and power of one GPU, which take 0.1 ms (measured on H200s), and of one in its turn the energy."""

from collections.abc import Callable

from mldebug.hardware.gpu.readings import GpuWatch
from mldebug_agents.hardware.gpu.nvml import bounds, fields
from mldebug_agents.hardware.gpu.nvml.calls import Ask
from mldebug_agents.hardware.gpu.nvml.energy import energy_if_cheap


def read_watch(ask: Ask, clock: Callable[[], float], *, energy: bool) -> GpuWatch:
    """Read one GPU; raises DeviceLostError and DriverGoneError. `energy`: it is its turn; `clock` counts seconds."""
    power = _power(ask)
    told = ask("utilization", "nvmlDeviceGetUtilizationRates")
    gpu, memory = (None, None) if told is None else (told.gpu, told.memory)
    return GpuWatch(
        uuid=ask.device.uuid,
        index=ask.device.index,
        bus_id=ask.device.bus_id,
        utilization_ratio=ask.convert("utilization", gpu, bounds.percent),
        memory_utilization_ratio=ask.convert("memory_utilization", memory, bounds.percent),
        power_watts=power,
        energy_joules=energy_if_cheap(ask, clock) if energy else None,
    )


def _power(ask: Ask) -> float | None:
    """Watts now: by the field, or by the getter where a library has only that."""
    key = (fields.POWER_INSTANT, 0)
    values = fields.read(ask, (key,))
    if key in values:
        return ask.convert("power", values[key], bounds.milliwatts)
    return ask("power", "nvmlDeviceGetPowerUsage", to=bounds.milliwatts)
