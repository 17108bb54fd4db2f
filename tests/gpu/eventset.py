"""Which GPUs tell their events (Xids) to whoever registers, and which kinds."""

from typing import Any

from mldebug_agents.hardware.gpu.nvml.events import KINDS, NvmlEvents
from mldebug_agents.hardware.gpu.nvml.library import Library


def registered(library: Library) -> list[dict[str, Any]]:
    """For each GPU the kinds that it supports, and whether the set took it."""
    library.start()
    devices = [library.device(index) for index in range(library.count())]
    events = NvmlEvents(library.nvml)
    events.join(devices)
    waiting = events.drain()
    found = []
    for device in devices:
        try:
            bits = library.nvml.nvmlDeviceGetSupportedEventTypes(device.handle)
        except library.nvml.NVMLError as error:
            found.append({"gpu": device.index, "error": str(error)})
            continue
        kinds = [name for bit, name in KINDS.items() if bits & bit]
        refused = device.uuid in events._unwilling
        found.append({"gpu": device.index, "kinds": kinds, "registered": not refused})
    events.close()
    return [{**one, "waiting": len(waiting)} for one in found]
