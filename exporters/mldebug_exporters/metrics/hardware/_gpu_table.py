"""The table of metrics that one GPU's full reading gives: name, meaning, labels, and where the value stands."""

from collections.abc import Callable, Iterator, Mapping

from mldebug.hardware.gpu.readings import (
    CLOCK_EVENTS,
    RECOVERY_ACTIONS,
    GpuReading,
    nvlink_errors,
)
from mldebug_exporters.exposition.families import Family, FamilyTable, Importance, Sample, known

Number = float | None
ByLabel = Mapping[str, Number] | Mapping[tuple[str, ...], Number]
Value = Number | ByLabel

UNREADABLE = "while the GPU or its driver does not tell it"
MONOTONE = "; monotone while the agent runs, whatever the driver's counter does"

TABLE = FamilyTable("uuid", "gpu", absent=UNREADABLE, importance=Importance.RUN)


def gpu_samples(gpu: GpuReading) -> Iterator[Sample]:
    """The value of each row for one GPU; of a row with a further label, one sample for each of its values. What could not be
    read has no sample.
    """
    key = gpu.uuid, str(gpu.index)
    for family, read in ROWS:
        value = read(gpu)
        if isinstance(value, Mapping):
            for label, one in value.items():
                labels = (label,) if isinstance(label, str) else label
                yield from known((*key, *labels), (family, one))
        else:
            yield from known(key, (family, value))


def _states(
    names: tuple[str, ...], on: Callable[[GpuReading], object]
) -> Callable[[GpuReading], dict[str, Number]]:
    """Each state as 0 or 1, none while it is not known which."""

    def read(gpu: GpuReading) -> dict[str, Number]:
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


def _remapped(gpu: GpuReading) -> dict[str, Number]:
    rows = gpu.remapped_rows
    if rows is None:
        return {}
    return {
        "corrected": _total(rows.corrected_total, rows.corrected),
        "uncorrected": _total(rows.uncorrected_total, rows.uncorrected),
    }


def _ecc(gpu: GpuReading) -> dict[tuple[str, ...], Number]:
    return {(one.type, one.location, one.scope): _total(one.total, one.count) for one in gpu.ecc}


# fmt: off
ROWS: tuple[tuple[Family, Callable[[GpuReading], Value]], ...] = (
    # --- load and memory -----------------------------------------------------------------------------
    (TABLE.gauge("gpu_utilization_ratio", "Time in which any kernel ran: 1 while a rank waits in a collective, too."),
     lambda g: g.utilization_ratio),
    (TABLE.gauge("gpu_memory_utilization_ratio", "Time in which memory was read or written."),
     lambda g: g.memory_utilization_ratio),
    (TABLE.gauge("gpu_graphics_active_ratio", "Time in which any context was active, by GPM."),
     lambda g: g.activity.graphics_ratio if g.activity else None),
    (TABLE.gauge("gpu_sm_active_ratio", "Time in which multiprocessors had work, averaged over them, by GPM."),
     lambda g: g.activity.sm_active_ratio if g.activity else None),
    (TABLE.gauge("gpu_sm_occupancy_ratio", "Warps on the multiprocessors, of those that fit, by GPM."),
     lambda g: g.activity.sm_occupancy_ratio if g.activity else None),
    (TABLE.gauge("gpu_dram_active_ratio", "Memory bandwidth used, of what is possible, by GPM."),
     lambda g: g.activity.dram_ratio if g.activity else None),
    (TABLE.gauge("gpu_tensor_active_ratio", "Time in which tensor pipes worked, by GPM.", "pipe"),
     lambda g: g.activity.tensor_ratio if g.activity else {}),
    (TABLE.gauge("gpu_memory_bytes", "Memory by state; reserved is what the driver keeps.", "state"),
     lambda g: {"used": g.memory_used_bytes, "free": g.memory_free_bytes, "reserved": g.memory_reserved_bytes}),
    (TABLE.gauge("gpu_memory_size_bytes", "Memory of the board."), lambda g: g.memory_total_bytes),
    (TABLE.gauge("gpu_processes", "Processes with a compute context."),
     lambda g: None if g.processes is None else len(g.processes)),
    (TABLE.gauge("gpu_process_memory_bytes", "Memory of all processes with a compute context."),
     lambda g: _sum([p.memory_bytes for p in g.processes]) if g.processes else None),
    # --- power, heat, clocks -------------------------------------------------------------------------
    (TABLE.gauge("gpu_power_watts", "Power drawn: averaged over a second, and at the moment.", "kind"),
     lambda g: {"average": g.power_average_watts, "instant": g.power_instant_watts}),
    (TABLE.gauge("gpu_power_limit_watts", "Power limit that is in force."), lambda g: g.power_limit_watts),
    (TABLE.gauge("gpu_power_limit_default_watts", "Power limit as the board was made."),
     lambda g: g.power_limit_default_watts),
    (TABLE.counter("gpu_energy_joules",
                   "Energy used since the driver was loaded, as it was up to a minute before the read: rate() needs a window of 2 minutes"
                   f" or more{MONOTONE}."),
     lambda g: g.energy_joules),
    (TABLE.gauge("gpu_temperature_celsius", "Temperature.", "sensor"),
     lambda g: {"core": g.temperature_celsius, "memory": g.memory_temperature_celsius}),
    (TABLE.gauge("gpu_temperature_margin_celsius", "How much warmer the GPU may get before its clocks are cut."),
     lambda g: g.temperature_margin_celsius),
    (TABLE.gauge("gpu_temperature_limit_celsius",
                 "Temperatures at which something is done.", "limit", importance=Importance.DETAIL),
     lambda g: g.temperature_limits_celsius),
    (TABLE.gauge("gpu_clock_hertz", "Clock now.", "domain"), lambda g: g.clock_hertz),
    (TABLE.gauge("gpu_clock_max_hertz", "Clock at most.", "domain", importance=Importance.DETAIL),
     lambda g: g.clock_max_hertz),
    (TABLE.gauge("gpu_performance_state",
                 "Performance state: 0 is the fastest, 15 the slowest.", importance=Importance.DETAIL),
     lambda g: g.performance_state),
    (TABLE.gauge("gpu_clock_event_active", "State set: 1 for each reason that keeps the clocks low now.", "reason"),
     _states(CLOCK_EVENTS, lambda g: g.clock_events)),
    (TABLE.counter("gpu_clock_event_seconds",
                   "Time that clocks were kept low; absent until a movement has proved the driver's unit, which drivers disagree"
                   f" about{MONOTONE}.", "reason"),
     lambda g: g.clock_event_seconds),
    # --- memory errors -------------------------------------------------------------------------------
    (TABLE.counter("gpu_ecc_errors", f"Memory errors that ECC found{MONOTONE}.", "type", "location", "scope",
                   importance=Importance.DETAIL), _ecc),
    (TABLE.gauge("gpu_ecc_mode", "1 while ECC is on.", importance=Importance.DETAIL), lambda g: _number(g.ecc_mode)),
    (TABLE.counter("gpu_remapped_rows", f"Rows of memory that were replaced by spare ones{MONOTONE}.", "cause"),
     _remapped),
    (TABLE.gauge("gpu_remapped_rows_pending", "1 where a reset will replace rows."),
     lambda g: _number(g.remapped_rows.pending if g.remapped_rows else None)),
    (TABLE.gauge("gpu_remapped_rows_failed", "1 where a row could not be replaced: reason to return the board."),
     lambda g: _number(g.remapped_rows.failed if g.remapped_rows else None)),
    (TABLE.gauge("gpu_remap_banks",
                 "Banks of memory by the spare rows that they have left.", "availability", importance=Importance.DETAIL),
     lambda g: g.remapped_rows.banks if g.remapped_rows else {}),
    (TABLE.gauge("gpu_retired_pages", "Pages of memory that are not used any more (before Ampere).", "cause"),
     lambda g: g.retired_pages),
    (TABLE.gauge("gpu_retired_pages_pending", "1 where the next load of the driver will retire pages."),
     lambda g: _number(g.retired_pages_pending)),
    # --- links ---------------------------------------------------------------------------------------
    (TABLE.gauge("gpu_pcie_link_generation", "PCIe generation now; it falls while the GPU is idle."),
     lambda g: g.pcie_generation),
    (TABLE.gauge("gpu_pcie_link_generation_max", "PCIe generation at most."), lambda g: g.pcie_generation_max),
    (TABLE.gauge("gpu_pcie_link_width_lanes", "PCIe lanes now."), lambda g: g.pcie_width),
    (TABLE.gauge("gpu_pcie_link_width_max_lanes", "PCIe lanes at most."), lambda g: g.pcie_width_max),
    (TABLE.counter("gpu_pcie_replays", f"PCIe packets that were sent again{MONOTONE}."), lambda g: g.pcie_replays),
    (TABLE.counter("gpu_pcie_errors", f"PCIe errors as the GPU sees them{MONOTONE}.", "kind", importance=Importance.DETAIL),
     lambda g: g.pcie_errors),
    (TABLE.counter("gpu_pcie_receive_bytes", f"Bytes to the GPU since the agent's first read{MONOTONE}."),
     lambda g: g.pcie_receive_bytes),
    (TABLE.counter("gpu_pcie_transmit_bytes", f"Bytes from the GPU since the agent's first read{MONOTONE}."),
     lambda g: g.pcie_transmit_bytes),
    (TABLE.gauge("gpu_nvlink_fabric_ready",
                 "1 where the GPU has joined its NVLink fabric (Fabric Manager), 0 where it has not."),
     lambda g: None if g.fabric is None else float(g.fabric.state == "completed" and not g.fabric.status)),
    (TABLE.gauge("gpu_nvlink_up", "1 where the link is up.", "link", importance=Importance.DETAIL),
     lambda g: {str(nvlink.link): _number(nvlink.up) for nvlink in g.nvlinks}),
    (TABLE.counter("gpu_nvlink_errors",
                   f"NVLink errors of all links; crc_data and ecc_data grow on healthy links{MONOTONE}.", "kind"),
     lambda g: {kind: nvlink_errors(g, kind) for kind in ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")}),
    (TABLE.counter("gpu_nvlink_receive_bytes", f"Data bytes over all links to the GPU{MONOTONE}."),
     lambda g: g.nvlink_receive_bytes),
    (TABLE.counter("gpu_nvlink_transmit_bytes", f"Data bytes over all links from the GPU{MONOTONE}."),
     lambda g: g.nvlink_transmit_bytes),
    # --- what to do ----------------------------------------------------------------------------------
    (TABLE.gauge("gpu_persistence_mode", "1 where the driver stays loaded without users.", importance=Importance.DETAIL),
     lambda g: _number(g.persistence_mode)),
    (TABLE.gauge("gpu_recovery_action", "State set: 1 for what the driver asks for.", "action"),
     _states(RECOVERY_ACTIONS, lambda g: g.recovery_action)),
)
# fmt: on
