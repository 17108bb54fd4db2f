"""The full read of one GPU: a batch of fields, and the few calls that have no field."""

from collections.abc import Callable
from typing import Any

import msgspec

from mldebug.hardware.gpu.readings import (
    RECOVERY_ACTIONS,
    EccCount,
    ErrorType,
    GpuProcess,
    GpuReading,
    RemappedRows,
    Scope,
)
from mldebug_agents.hardware.gpu.nvml import bounds, fields, links, state
from mldebug_agents.hardware.gpu.nvml.calls import Ask
from mldebug_agents.hardware.gpu.nvml.fabric import fabric
from mldebug_agents.hardware.gpu.nvml.fields import Key, Values
from mldebug_agents.hardware.gpu.nvml.gpm import Gpm
from mldebug_agents.hardware.gpu.nvml.watch_read import fresh_energy

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
_USED = "use by each process"
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
MAX_PROCESSES = 256
_NONE = 0xFFFFFFFF
_TYPES: tuple[tuple[ErrorType, int], ...] = (("corrected", 0), ("uncorrected", 1))
_SCOPES: tuple[tuple[Scope, int], ...] = (("volatile", 0), ("aggregate", 1))
_PLACES = {
    "l1": 0,
    "l2": 1,
    "dram": 2,
    "register": 3,
    "texture": 4,
    "shared": 5,
    "cbu": 6,
    "sram": 7,
}
_CAUSES = {"corrected": 0, "uncorrected": 1}


def read_full(ask: Ask, gpm: Gpm, clock: Callable[[], float]) -> GpuReading:
    """Take a full reading of one GPU. Raises DeviceLostError and DriverGoneError. `clock` returns seconds."""
    ask.device.begin_full_read()
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
        "fabric": fabric(ask),
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
    kept: Values = ask.device.kept.setdefault(_KNOWN, {})
    seldom = _SELDOM if ask.device.turn(ask.device.index) else ()
    values = fields.read(ask, (*_FIELDS, *seldom, *links.link_fields(ask)))
    kept.update({key: values[key] for key in seldom if key in values})
    return kept | values


def _action(ask: Ask, values: Values) -> str | None:
    number = ask.convert("recovery_action", values.get((fields.RECOVERY_ACTION, 0)), bounds.count)
    if number is None:
        return None
    return RECOVERY_ACTIONS[number] if number < len(RECOVERY_ACTIONS) - 1 else "unknown"


def identity(ask: Ask) -> dict[str, Any]:
    """The part of a `GpuReading` that identifies the GPU: uuid, addresses, names, versions."""
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


def processes(ask: Ask) -> tuple[GpuProcess, ...] | None:
    """Compute processes on the GPU by pid; None where the driver does not list them. Pids of other containers may be missing."""
    listed = ask("processes", "nvmlDeviceGetComputeRunningProcesses_v3")
    if listed is None:
        listed = ask("processes", "nvmlDeviceGetComputeRunningProcesses_v2")
    if listed is None:
        return None
    found = [_process(ask, one) for one in listed[:MAX_PROCESSES]]
    return _with_use(ask, tuple(sorted((one for one in found if one), key=lambda one: one.pid)))


def _with_use(ask: Ask, found: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    """The processes, each with whether it has used the GPU since this was read before (2 ms, so only where there are several).

    It stays unknown where the driver's samples show use by none of them, or by another: it may count in another pid namespace.
    """
    if len(found) < 2:
        return found
    since = ask.device.kept.get(_USED, 0)
    samples = ask(_USED, "nvmlDeviceGetProcessUtilization", since)
    if samples is None:
        ask.unreadable.pop(_USED, None)  # without new samples it is an error
        return found
    ask.device.kept[_USED] = max((int(one.timeStamp) for one in samples), default=since)
    used = {int(one.pid) for one in samples if one.smUtil or one.memUtil or one.encUtil or one.decUtil}  # fmt: skip
    if not used or not used <= {one.pid for one in found}:
        return found
    return tuple(msgspec.structs.replace(one, active=one.pid in used) for one in found)


def _process(ask: Ask, listed: Any) -> GpuProcess | None:
    if not 0 < listed.pid < 2**31:
        ask.note("processes", f"it says pid {listed.pid}, which cannot be")
        return None
    memory = ask.convert("process memory", listed.usedGpuMemory, bounds.size)
    instance = listed.gpuInstanceId
    return GpuProcess(
        pid=listed.pid,
        memory_bytes=memory,
        gpu_instance=None if instance == _NONE else int(instance),
    )


def memory_errors(ask: Ask) -> dict[str, Any]:
    """The part of a `GpuReading` about memory errors: ECC counts, replaced rows, retired pages."""
    modes = ask.seldom("ecc_mode", "nvmlDeviceGetEccMode")
    pages = {
        cause: ask(f"retired_pages {cause}", "nvmlDeviceGetRetiredPages", number, to=len)
        for cause, number in _CAUSES.items()
    }
    return {
        "ecc_mode": ask.convert("ecc_mode", modes[0], bounds.switch) if modes else None,
        "ecc": _ecc(ask),
        "remapped_rows": _rows(ask),
        "retired_pages": {cause: found for cause, found in pages.items() if found is not None},
        "retired_pages_pending": ask(
            "retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus", to=bounds.switch
        ),
    }


def _ecc(ask: Ask) -> tuple[EccCount, ...]:
    found = []
    for kind, type_ in _TYPES:
        for scope, number in _SCOPES:
            counts = {
                place: ask(
                    f"ecc {kind} {place} {scope}",
                    "nvmlDeviceGetMemoryErrorCounter",
                    *(type_, number, at),
                    to=bounds.count,
                )
                for place, at in _PLACES.items()
            }
            counts["total"] = ask(
                f"ecc {kind} {scope}", "nvmlDeviceGetTotalEccErrors", type_, number, to=bounds.count
            )
            found += [
                EccCount(type=kind, location=place, scope=scope, count=count)
                for place, count in counts.items()
                if count is not None
            ]
    return tuple(found)


def _rows(ask: Ask) -> RemappedRows | None:
    rows = ask("remapped_rows", "nvmlDeviceGetRemappedRows")
    if rows is None:
        return None
    corrected, uncorrected, pending, failed = rows
    banks = ask("remap_banks", "nvmlDeviceGetRowRemapperHistogram")
    names = ("max", "high", "partial", "low", "none")
    counts = {
        name: ask.convert("remap_banks", getattr(banks, name, None), bounds.count) for name in names
    }
    return RemappedRows(
        corrected=ask.convert("remapped_rows", corrected, bounds.count),
        uncorrected=ask.convert("remapped_rows", uncorrected, bounds.count),
        pending=ask.convert("remapped_rows", pending, bounds.switch),
        failed=ask.convert("remapped_rows", failed, bounds.switch),
        banks={name: count for name, count in counts.items() if count is not None},
    )
