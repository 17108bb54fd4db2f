"""The table of metrics that one GPU's full reading gives: name, meaning, labels, and where the value stands."""

from collections.abc import Callable, Mapping

from mldebug.hardware.gpu.readings import (
    CLOCK_EVENTS,
    RECOVERY_ACTIONS,
    GpuReading,
    nvlink_errors,
)
from mldebug_exporters.exposition.families import Family, FamilyTable, Importance

Number = float | None
One = Callable[[GpuReading], Number]
Many = Callable[[GpuReading], Mapping[str, Number]]

GPU = ("uuid", "gpu")
UNREADABLE = "while the GPU or its driver does not tell it"
SOURCE = "; monotone while the agent runs, whatever the driver's counter does"

GPU_TABLE = FamilyTable(*GPU, absent=UNREADABLE, importance=Importance.RUN)
SINGLE: list[tuple[Family, One]] = []
BY_LABEL: list[tuple[Family, Many]] = []


def _family(name: str, meaning: str, *labels: str, detail: bool = False) -> Family:
    importance = Importance.DETAIL if detail else Importance.RUN
    if name.endswith("_total"):
        name = f"gpu_{name.removesuffix('_total')}"
        return GPU_TABLE.counter(name, f"{meaning}{SOURCE}.", *labels, importance=importance)
    return GPU_TABLE.gauge(f"gpu_{name}", f"{meaning}.", *labels, importance=importance)


def _one(name: str, meaning: str, read: One, *, detail: bool = False) -> None:
    SINGLE.append((_family(name, meaning, detail=detail), read))


def _many(name: str, meaning: str, label: str, read: Many, *, detail: bool = False) -> None:
    BY_LABEL.append((_family(name, meaning, label, detail=detail), read))


def _states(names: tuple[str, ...], on: Callable[[GpuReading], object]) -> Many:
    """Each state as 0 or 1, none while it is not known which."""

    def read(gpu: GpuReading) -> Mapping[str, Number]:
        now = on(gpu)
        active = (now,) if isinstance(now, str) else now
        return {} if active is None else {name: float(name in active) for name in names}  # type: ignore[operator]

    return read


def _number(on: bool | None) -> Number:
    return None if on is None else float(on)


def _total(monotone: Number, raw: Number) -> Number:
    """A counter as metrics show it; as it was told where nobody made it monotone."""
    return raw if monotone is None else monotone


def _sum(values: list[int | None]) -> Number:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


# --- load and memory -----------------------------------------------------------------------------

_one("utilization_ratio", "Time in which any kernel ran: 1 while a rank waits in a collective, too",
     lambda g: g.utilization_ratio)  # fmt: skip
_one("memory_utilization_ratio", "Time in which memory was read or written",
     lambda g: g.memory_utilization_ratio)  # fmt: skip
_one("graphics_active_ratio", "Time in which any context was active, by GPM",
     lambda g: g.activity.graphics_ratio if g.activity else None)  # fmt: skip
_one("sm_active_ratio", "Time in which multiprocessors had work, averaged over them, by GPM",
     lambda g: g.activity.sm_active_ratio if g.activity else None)  # fmt: skip
_one("sm_occupancy_ratio", "Warps on the multiprocessors, of those that fit, by GPM",
     lambda g: g.activity.sm_occupancy_ratio if g.activity else None)  # fmt: skip
_one("dram_active_ratio", "Memory bandwidth used, of what is possible, by GPM",
     lambda g: g.activity.dram_ratio if g.activity else None)  # fmt: skip
_many("tensor_active_ratio", "Time in which tensor pipes worked, by GPM", "pipe",
      lambda g: g.activity.tensor_ratio if g.activity else {})  # fmt: skip
_many("memory_bytes", "Memory by state; reserved is what the driver keeps", "state",
      lambda g: {"used": g.memory_used_bytes, "free": g.memory_free_bytes,
                 "reserved": g.memory_reserved_bytes})  # fmt: skip
_one("memory_size_bytes", "Memory of the board", lambda g: g.memory_total_bytes)
_one("processes", "Processes with a compute context",
     lambda g: None if g.processes is None else len(g.processes))  # fmt: skip
_one("process_memory_bytes", "Memory of all processes with a compute context",
     lambda g: _sum([p.memory_bytes for p in g.processes]) if g.processes else None)  # fmt: skip

# --- power, heat, clocks -------------------------------------------------------------------------

_many("power_watts", "Power drawn: averaged over a second, and at the moment", "kind",
      lambda g: {"average": g.power_average_watts, "instant": g.power_instant_watts})  # fmt: skip
_one("power_limit_watts", "Power limit that is in force", lambda g: g.power_limit_watts)
_one("power_limit_default_watts", "Power limit as the board was made",
     lambda g: g.power_limit_default_watts)  # fmt: skip
_one("energy_joules_total", "Energy used since the driver was loaded, as it was up to a minute before the read:"
     " rate() needs a window of 2 minutes or more", lambda g: g.energy_joules)  # fmt: skip
_many("temperature_celsius", "Temperature", "sensor",
      lambda g: {"core": g.temperature_celsius, "memory": g.memory_temperature_celsius})  # fmt: skip
_one("temperature_margin_celsius", "How much warmer the GPU may get before its clocks are cut",
     lambda g: g.temperature_margin_celsius)  # fmt: skip
_many("temperature_limit_celsius", "Temperatures at which something is done", "limit",
      lambda g: g.temperature_limits_celsius, detail=True)  # fmt: skip
_many("clock_hertz", "Clock now", "domain", lambda g: g.clock_hertz)
_many("clock_max_hertz", "Clock at most", "domain", lambda g: g.clock_max_hertz, detail=True)
_one("performance_state", "Performance state: 0 is the fastest, 15 the slowest",
     lambda g: g.performance_state, detail=True)  # fmt: skip
_many("clock_event_active", "State set: 1 for each reason that keeps the clocks low now", "reason",
      _states(CLOCK_EVENTS, lambda g: g.clock_events))  # fmt: skip
_many("clock_event_seconds_total", "Time that clocks were kept low; absent until a movement has proved the"
      " driver's unit, which drivers disagree about", "reason", lambda g: g.clock_event_seconds)  # fmt: skip

# --- memory errors -------------------------------------------------------------------------------

ECC = _family(
    "ecc_errors_total", "Memory errors that ECC found", "type", "location", "scope", detail=True
)
_one("ecc_mode", "1 while ECC is on", lambda g: _number(g.ecc_mode), detail=True)
_many("remapped_rows_total", "Rows of memory that were replaced by spare ones", "cause",
      lambda g: {"corrected": _total(g.remapped_rows.corrected_total, g.remapped_rows.corrected),
                 "uncorrected": _total(g.remapped_rows.uncorrected_total, g.remapped_rows.uncorrected)}
      if g.remapped_rows else {})  # fmt: skip
_one("remapped_rows_pending", "1 where a reset will replace rows",
     lambda g: _number(g.remapped_rows.pending if g.remapped_rows else None))  # fmt: skip
_one("remapped_rows_failed", "1 where a row could not be replaced: reason to return the board",
     lambda g: _number(g.remapped_rows.failed if g.remapped_rows else None))  # fmt: skip
_many("remap_banks", "Banks of memory by the spare rows that they have left", "availability",
      lambda g: g.remapped_rows.banks if g.remapped_rows else {}, detail=True)  # fmt: skip
_many("retired_pages", "Pages of memory that are not used any more (before Ampere)", "cause",
      lambda g: g.retired_pages)  # fmt: skip
_one("retired_pages_pending", "1 where the next load of the driver will retire pages",
     lambda g: _number(g.retired_pages_pending))  # fmt: skip

# --- links ---------------------------------------------------------------------------------------

_one("pcie_link_generation", "PCIe generation now; it falls while the GPU is idle",
     lambda g: g.pcie_generation)  # fmt: skip
_one("pcie_link_generation_max", "PCIe generation at most", lambda g: g.pcie_generation_max)
_one("pcie_link_width_lanes", "PCIe lanes now", lambda g: g.pcie_width)
_one("pcie_link_width_max_lanes", "PCIe lanes at most", lambda g: g.pcie_width_max)
_one("pcie_replays_total", "PCIe packets that were sent again", lambda g: g.pcie_replays)
_many("pcie_errors_total", "PCIe errors as the GPU sees them", "kind",
      lambda g: g.pcie_errors, detail=True)  # fmt: skip
_one("pcie_receive_bytes_total", "Bytes to the GPU since the agent's first read",
     lambda g: g.pcie_receive_bytes)  # fmt: skip
_one("pcie_transmit_bytes_total", "Bytes from the GPU since the agent's first read",
     lambda g: g.pcie_transmit_bytes)  # fmt: skip
_one("nvlink_fabric_ready", "1 where the GPU has joined its NVLink fabric (Fabric Manager), 0 where it has not",
     lambda g: None if g.fabric is None else float(g.fabric.state == "completed" and not g.fabric.status))  # fmt: skip
_many("nvlink_up", "1 where the link is up", "link",
      lambda g: {str(nvlink.link): _number(nvlink.up) for nvlink in g.nvlinks}, detail=True)  # fmt: skip
_many("nvlink_errors_total", "NVLink errors of all links; crc_data and ecc_data grow on healthy links", "kind",
      lambda g: {kind: nvlink_errors(g, kind)
                 for kind in ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")})  # fmt: skip
_one(
    "nvlink_receive_bytes_total",
    "Data bytes over all links to the GPU",
    lambda g: g.nvlink_receive_bytes,
)
_one("nvlink_transmit_bytes_total", "Data bytes over all links from the GPU",
     lambda g: g.nvlink_transmit_bytes)  # fmt: skip

# --- what to do ----------------------------------------------------------------------------------

_one("persistence_mode", "1 where the driver stays loaded without users",
     lambda g: _number(g.persistence_mode), detail=True)  # fmt: skip
_many("recovery_action", "State set: 1 for what the driver asks for", "action",
      _states(RECOVERY_ACTIONS, lambda g: g.recovery_action))  # fmt: skip
