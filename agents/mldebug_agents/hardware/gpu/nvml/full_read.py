"""The full read of one GPU: a batch of fields, and the few calls that have no field."""

from collections.abc import Callable

from mldebug.hardware.gpu.readings import RECOVERY_ACTIONS, GpuReading
from mldebug_agents.hardware.gpu.nvml import bounds, fields, links, state
from mldebug_agents.hardware.gpu.nvml.calls import Ask
from mldebug_agents.hardware.gpu.nvml.energy import fresh_energy
from mldebug_agents.hardware.gpu.nvml.fields import Key, Values
from mldebug_agents.hardware.gpu.nvml.gpm import Gpm
from mldebug_agents.hardware.gpu.nvml.identity import identity
from mldebug_agents.hardware.gpu.nvml.memory_errors import memory_errors
from mldebug_agents.hardware.gpu.nvml.processes import processes

_FIELDS: tuple[Key, ...] = tuple(
    (field, 0)
    for field in (
        *(fields.POWER_AVERAGE, fields.POWER_INSTANT, fields.MEMORY_TEMPERATURE),
        *(fields.RECOVERY_ACTION, fields.PCIE_REPLAYS, fields.PCIE_TRANSMIT, fields.PCIE_RECEIVE),
        *fields.CLOCK_EVENTS.values(),
    )
)
_SELDOM: tuple[Key, ...] = tuple((field, 0) for field in fields.PCIE_ERRORS.values())
_KNOWN = "seldom fields"


def read_full(ask: Ask, gpm: Gpm, clock: Callable[[], float]) -> GpuReading:
    """Read one GPU; raises DeviceLostError and DriverGoneError. `clock` counts seconds."""
    ask.device.reads += 1
    who = identity(ask)
    values = _batch(ask)
    parts = {
        **who,
        **state.load(ask),
        **state.heat(ask, values),
        **state.power(ask, values),
        "energy_joules": fresh_energy(ask, clock),
        **state.clocks(ask, values),
        **memory_errors(ask),
        **links.pcie(ask, values),
        **links.nvlink(ask, values),
        "activity": gpm.read(ask),
        "recovery_action": _action(ask, values),
        "processes": processes(ask),
    }
    return GpuReading(
        uuid=ask.device.uuid,
        index=ask.device.index,
        bus_id=ask.device.bus_id,
        unreadable=ask.unreadable,
        unsupported=ask.unsupported,
        **parts,
    )


def _batch(ask: Ask) -> Values:
    """All fields in one call; what is dear is asked by turns and remembered."""
    known: Values = ask.device.kept.setdefault(_KNOWN, {})
    seldom = _SELDOM if ask.device.turn(ask.device.index) else ()
    values = fields.read(ask, (*_FIELDS, *seldom, *links.link_fields(ask)))
    known.update({key: values[key] for key in seldom if key in values})
    return known | values


def _action(ask: Ask, values: Values) -> str | None:
    told = ask.convert("recovery_action", values.get((fields.RECOVERY_ACTION, 0)), bounds.count)
    if told is None:
        return None
    return RECOVERY_ACTIONS[told] if told < len(RECOVERY_ACTIONS) - 1 else "unknown"
