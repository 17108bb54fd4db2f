"""Who a GPU is, and how it is set up: mostly asked once."""

from typing import Any

from mldebug_agents.hardware.gpu.nvml import bounds
from mldebug_agents.hardware.gpu.nvml.calls import Ask

_ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}


def identity(ask: Ask) -> dict[str, Any]:
    """Return the fields of a `GpuReading` that name the GPU."""
    architecture = ask.keep("architecture", "nvmlDeviceGetArchitecture")
    return {
        "name": ask.keep("name", "nvmlDeviceGetName", to=bounds.words) or "",
        "serial": ask.keep("serial", "nvmlDeviceGetSerial", to=bounds.words) or "",
        "vbios": ask.keep("vbios", "nvmlDeviceGetVbiosVersion", to=bounds.words) or "",
        "minor": ask.keep("minor", "nvmlDeviceGetMinorNumber", to=bounds.small),
        "architecture": _ARCHITECTURES.get(architecture, "") if architecture else "",
        "persistence_mode": ask("persistence", "nvmlDeviceGetPersistenceMode", to=bounds.switch),
        **_mig(ask),
    }


def _mig(ask: Ask) -> dict[str, Any]:
    modes = ask.seldom("mig_mode", "nvmlDeviceGetMigMode")
    mode = ask.convert("mig_mode", modes and modes[0], bounds.switch) if modes else None
    if ask.device.kept.get("mig") not in (None, mode):
        ask.device.unsupported.clear()  # in the other mode other things are supported
    ask.device.kept["mig"] = mode
    return {"mig_mode": mode, "mig_instances": _instances(ask) if mode else ()}


def _instances(ask: Ask) -> tuple[str, ...]:
    found = []
    for number in range(ask("mig_count", "nvmlDeviceGetMaxMigDeviceCount", to=bounds.small) or 0):
        handle = _instance(ask, number)
        if handle is not None:
            found.append(bounds.words(ask.nvml.nvmlDeviceGetUUID(handle)))
    return tuple(found)


def _instance(ask: Ask, number: int) -> Any:
    try:
        return ask.nvml.nvmlDeviceGetMigDeviceHandleByIndex(ask.device.handle, number)
    except ask.nvml.NVMLError:  # "not found": there are fewer than there can be
        return None
