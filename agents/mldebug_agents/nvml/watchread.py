"""The watch read: utilization, power and energy of one GPU, and nothing that costs more.

Utilization and power are cheap (recorded on H200s: 0.1 ms a GPU together), the energy is not (3.4 ms), so that one is asked
of few GPUs at a look, by turns: see `energy_turn`.
"""

from mldebug.gpus.readings import GpuWatch
from mldebug_agents.nvml import fields, sane
from mldebug_agents.nvml.asking import Ask

AT_ONCE = 2  # GPUs whose energy is read at one look


def energy_turn(index: int, gpus: int, look: int) -> bool:
    """Is it this GPU's turn? Looks are numbered from 0; every GPU has one turn in ceil(`gpus` / `AT_ONCE`) looks."""
    turns = max(1, -(-gpus // AT_ONCE))
    return index % turns == look % turns


def read_watch(ask: Ask, *, energy: bool = True) -> GpuWatch:
    """Read one GPU, its energy only where that is wanted; raises DeviceLostError and DriverGoneError."""
    power = _power(ask)
    joules = _energy(ask) if energy else None
    told = ask("utilization", "nvmlDeviceGetUtilizationRates")
    gpu, memory = (None, None) if told is None else (told.gpu, told.memory)
    return GpuWatch(
        uuid=ask.device.uuid,
        index=ask.device.index,
        bus_id=ask.device.bus_id,
        utilization_ratio=ask.convert("utilization", gpu, sane.percent),
        memory_utilization_ratio=ask.convert("memory_utilization", memory, sane.percent),
        power_watts=power,
        energy_joules=joules,
    )


def _power(ask: Ask) -> float | None:
    """Watts now: by the field, or by the getter where a library has only that."""
    key = (fields.POWER_INSTANT, 0)
    values = fields.read(ask, (key,))
    if key in values:
        return ask.convert("power", values[key], sane.milliwatts)
    return ask("power", "nvmlDeviceGetPowerUsage", to=sane.milliwatts)


def _energy(ask: Ask) -> float | None:
    """Joules since the driver was loaded."""
    key = (fields.ENERGY, 0)
    values = fields.read(ask, (key,))
    if key in values:
        return ask.convert("energy", values[key], sane.millijoules)
    return ask("energy", "nvmlDeviceGetTotalEnergyConsumption", to=sane.millijoules)
