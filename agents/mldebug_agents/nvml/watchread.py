"""The watch read: utilization, power and energy of one GPU, and nothing that costs more.

Asking for utilization and energy takes milliseconds a GPU (recorded on H200s: 2 to 4, and 2 to 10), the power next to nothing.
So a GPU that works and goes on drawing the power that it drew is asked for its power alone, and for its utilization at every
`TURN`th look. Once the power moves it is asked for all again at once: a rank that stops working is seen at the next look.
"""

from typing import NamedTuple

from mldebug.gpus.readings import GpuWatch
from mldebug_agents.nvml import fields, sane
from mldebug_agents.nvml.asking import Ask

STEADY = 0.2  # of the power: by less it moves from look to look in training
TURN = 4  # looks; GPUs take turns by their number, so that no look pays for all of them
_LAST = "watch"


class _Rates(NamedTuple):
    """Time with any kernel running, and with memory traffic; and the power when it was read."""

    gpu: float | None
    memory: float | None
    power: float | None

    @property
    def works(self) -> bool:
        """A rank that only waits in a collective moves no memory."""
        return bool(self.gpu and self.memory and self.power)

    def goes_on(self, power: float | None) -> bool:
        """Is it still the same work, as far as power tells?"""
        if not self.works or power is None or self.power is None:
            return False
        return abs(power - self.power) <= STEADY * self.power


def read_watch(ask: Ask) -> GpuWatch:
    """Read one GPU; raises DeviceLostError and DriverGoneError.

    While a GPU works steadily the utilization is at most `TURN` looks old, and the energy is left out.
    """
    looks, last = ask.device.kept.get(_LAST, (0, None))
    power = _power(ask)
    energy = None if last is not None and last.works else _energy(ask)
    turn = (looks + ask.device.index) % TURN == 0
    rates = last if last and not turn and last.goes_on(power) else _rates(ask, power)
    ask.device.kept[_LAST] = (looks + 1, rates)
    return GpuWatch(
        uuid=ask.device.uuid,
        index=ask.device.index,
        bus_id=ask.device.bus_id,
        utilization_ratio=rates.gpu,
        memory_utilization_ratio=rates.memory,
        power_watts=power,
        energy_joules=energy,
    )


def _rates(ask: Ask, power: float | None) -> _Rates:
    told = ask("utilization", "nvmlDeviceGetUtilizationRates")
    if told is None:
        return _Rates(None, None, power)
    gpu = ask.convert("utilization", told.gpu, sane.percent)
    return _Rates(gpu, ask.convert("memory_utilization", told.memory, sane.percent), power)


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
