"""The quick reading: utilization and power of one GPU, which take 0.1 ms (measured on H200s). One GPU in turn also gives its
energy.
"""

from collections.abc import Callable

import msgspec

from mldebug.hardware.gpu.readings import GpuWatch
from mldebug_agents.hardware.gpu.nvml import bounds, fields
from mldebug_agents.hardware.gpu.nvml.calls import Ask

DEAR = 0.008  # seconds: a GPU whose last answer took longer is left to the full read
FRESH = 60.0  # seconds for which what was told is still told
_KEY = (fields.ENERGY, 0)
KEPT = "energy"


def read_watch(ask: Ask, clock: Callable[[], float], *, energy: bool) -> GpuWatch:
    """Take the quick reading of one GPU. `energy`: also read its energy counter. `clock` returns seconds. Raises
    DeviceLostError, DriverGoneError.
    """
    power = _power(ask)
    rates = ask("utilization", "nvmlDeviceGetUtilizationRates")
    gpu, memory = (None, None) if rates is None else (rates.gpu, rates.memory)
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


class Energy(msgspec.Struct, frozen=True):
    """The last reading of one GPU's energy counter: the joules since the driver was loaded, and how many seconds the call took."""

    joules: float | None
    at: float
    seconds: float  # that it took
    by_watch: bool


def energy_if_cheap(ask: Ask, clock: Callable[[], float]) -> float | None:
    """Joules for the quick reading, unless this GPU was slow to answer the last time: then None."""
    last: Energy | None = ask.device.kept.get(KEPT)
    if last is not None and last.seconds > DEAR:
        return None
    return _read(ask, clock, by_watch=True)


def fresh_energy(ask: Ask, clock: Callable[[], float]) -> float | None:
    """The GPU's energy counter in joules: what the last quick reading read where that is at most a minute old, else queried now;
    None where the query fails.
    """
    last: Energy | None = ask.device.kept.get(KEPT)
    fresh = last is not None and last.by_watch and 0 <= clock() - last.at <= FRESH
    if last is not None and fresh and last.joules is not None:
        return last.joules
    return _read(ask, clock, by_watch=False)


def _read(ask: Ask, clock: Callable[[], float], *, by_watch: bool) -> float | None:
    """By the field, or by the getter where a library has only that."""
    began = clock()
    values = fields.read(ask, (_KEY,))
    if _KEY in values:
        joules = ask.convert("energy", values[_KEY], bounds.millijoules)
    else:
        joules = ask("energy", "nvmlDeviceGetTotalEnergyConsumption", to=bounds.millijoules)
    now = clock()
    ask.device.kept[KEPT] = Energy(joules, now, now - began, by_watch)
    return joules
