"""The watch read: utilization, power and energy of one GPU, and nothing that costs more."""

from mldebug.gpus.readings import GpuWatch
from mldebug_agents.nvml import fields, sane
from mldebug_agents.nvml.asking import Ask

_FIELDS = ((fields.POWER_INSTANT, 0), (fields.ENERGY, 0))


def read_watch(ask: Ask) -> GpuWatch:
    """Read one GPU; raises DeviceLostError and DriverGoneError."""
    rates = ask("utilization", "nvmlDeviceGetUtilizationRates")
    power, energy = power_and_energy(ask)
    return GpuWatch(
        uuid=ask.device.uuid,
        index=ask.device.index,
        bus_id=ask.device.bus_id,
        utilization_ratio=rates and ask.convert("utilization", rates.gpu, sane.percent),
        memory_utilization_ratio=rates
        and ask.convert("memory_utilization", rates.memory, sane.percent),
        power_watts=power,
        energy_joules=energy,
    )


def power_and_energy(ask: Ask) -> tuple[float | None, float | None]:
    """Watts now and joules since the driver was loaded: by fields, or by the getters where a library has only those."""
    values = fields.read(ask, _FIELDS)
    power = ask.convert("power", values.get((fields.POWER_INSTANT, 0)), sane.milliwatts)
    energy = ask.convert("energy", values.get((fields.ENERGY, 0)), sane.millijoules)
    if (fields.POWER_INSTANT, 0) not in values:
        power = ask("power", "nvmlDeviceGetPowerUsage", to=sane.milliwatts)
    if (fields.ENERGY, 0) not in values:
        energy = ask("energy", "nvmlDeviceGetTotalEnergyConsumption", to=sane.millijoules)
    return power, energy
