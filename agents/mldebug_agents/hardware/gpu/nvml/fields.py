"""Field values: one call for many numbers. The ids are the driver's (nvml.h, NVML_FI_*).

A field that comes back with SUCCESS, type double, value 0 was never filled in: drivers do that, and none of those that are read here is a double.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from mldebug_agents.hardware.gpu.nvml.calls import Ask

ENERGY = 83
POWER_AVERAGE, POWER_INSTANT = 185, 186
MEMORY_TEMPERATURE = 82
RECOVERY_ACTION = 230
PCIE_REPLAYS = 94
PCIE_TRANSMIT, PCIE_RECEIVE = 197, 198
NVLINK_COUNT = 91
NVLINK_TRANSMIT, NVLINK_RECEIVE = 138, 139  # KiB; the link is the scope, or
ALL_LINKS = 0xFFFFFFFF
NVLINK_REPLAY, NVLINK_RECOVERY, NVLINK_CRC, NVLINK_SPEED, NVLINK_STATE = 161, 162, 163, 164, 165

CLOCK_EVENTS = {
    "low_utilization": 78,  # no fault, but it moves whenever a GPU idles: that tells the unit of all
    "sw_power_cap": 74,
    "sync_boost": 76,
    "sw_thermal_slowdown": 269,
    "hw_thermal_slowdown": 270,
    "hw_power_brake_slowdown": 271,
}
PCIE_ERRORS = {
    "l0_to_recovery": 169,
    "correctable": 173,
    "naks_received": 174,
    "receiver": 175,
    "bad_tlp": 176,
    "naks_sent": 177,
    "bad_dllp": 178,
    "nonfatal": 179,
    "fatal": 180,
    "unsupported_request": 181,
    "lcrc": 182,
    "lane": 183,
}

OF_LINKS = (
    *(NVLINK_COUNT, NVLINK_TRANSMIT, NVLINK_RECEIVE),
    *(NVLINK_REPLAY, NVLINK_RECOVERY, NVLINK_CRC, NVLINK_SPEED, NVLINK_STATE),
)
LAST = (POWER_INSTANT, 0)  # cheap, and of no link

Key = tuple[int, int]  # field, scope
Values = dict[Key, int | float]

_DOUBLE, _UNSIGNED_INT, _UNSIGNED_LONG, _UNSIGNED_LONG_LONG, _LONG_LONG, _INT, _UNSIGNED_SHORT = (
    range(7)
)
_MEMBERS = {
    _DOUBLE: "dVal",
    _UNSIGNED_INT: "uiVal",
    _UNSIGNED_LONG: "ulVal",
    _UNSIGNED_LONG_LONG: "ullVal",
    _LONG_LONG: "sllVal",
    _INT: "siVal",
    _UNSIGNED_SHORT: "usVal",
}


def read(ask: Ask, keys: Sequence[Key]) -> Values:
    """The values of these NVML fields, all read in one call. A field that the GPU does not support is left out and not queried
    again.
    """
    left = _of_no_link_last(key for key in keys if ("field", *key) not in ask.device.unsupported)
    answer: Sequence[Any] | None = left and ask("fields", "nvmlDeviceGetFieldValues", left)
    found: Values = {}
    for key, one in zip(left, answer or (), strict=False):
        value = _value(one)
        if one.nvmlReturn in (2, 3, 13):
            ask.device.unsupported["field", *key] = f"field {key[0]}"
        elif one.nvmlReturn == 0 and value is not None:
            found[key] = value
    return found


def _of_no_link_last(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Drivers (580.159.04 at least) fill in one entry more than the last one of a link, where what lies there looks like a link's.

    Behind the end of the array that is somebody else's memory: readers died of it.
    """
    ordered = sorted(keys, key=lambda key: key[0] not in OF_LINKS)
    if ordered and ordered[-1][0] in OF_LINKS:
        ordered.append(LAST)
    return tuple(ordered)


def _value(one: Any) -> int | float | None:
    member = _MEMBERS.get(one.valueType)
    if member is None or (one.valueType == _DOUBLE and one.value.ullVal == 0):
        return None
    value: int | float = getattr(one.value, member)
    return value
