"""GPUs: load, memory, power, heat, clocks, errors, links; `uuid` and `gpu` name a GPU, the rest stands in its info."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.hardware.gpu.readings import (
    CLOCK_EVENTS,
    RECOVERY_ACTIONS,
    GpuReading,
    NodeGpus,
    NodeWatch,
    nvlink_errors,
)
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import (
    Family,
    FamilyTable,
    Importance,
    MetricGroup,
    Sample,
    known,
)

Number = float | None
ByLabel = Mapping[str, Number] | Mapping[tuple[str, ...], Number]
Value = Number | ByLabel

UNREADABLE = "while the GPU or its driver does not tell it"
MONOTONE = "; monotone while the agent runs, whatever the driver's counter does"

PER_GPU = FamilyTable("uuid", "gpu", absent=UNREADABLE, importance=Importance.RUN)
NO_LIBRARY = "where there is no GPU library, and after a read that failed"

TABLE = FamilyTable(absent=NO_LIBRARY)
GPUS = TABLE.gauge("gpus", "GPUs that answered the last read.")
GPU = TABLE.labelled("uuid", "gpu")
UP = GPU.gauge(
    "gpu_up",
    "1 where the GPU answered the last read, 0 where it was there before and does not answer.",
    absent="before a GPU has answered once",
    importance=Importance.RUN,
)
INFO = GPU.info(
    "gpu",
    "Who a GPU is, to join on `uuid`.",
    "name",
    "driver_version",
    "vbios",
    "pci_bus_id",
    "serial",
    "mig_mode",
    absent=UNREADABLE,
    importance=Importance.RUN,
)
READ = TABLE.gauge(
    "gpu_read_duration_seconds",
    "Duration of the last watch read (every few seconds) and full read of all GPUs.",
    "read",
)
READ_CPU = TABLE.gauge(
    "gpu_read_cpu_seconds", "CPU time that the last read took in the child that reads GPUs.", "read"
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The last readings of the GPUs of this node. A GPU that is lost has only `up` 0."""
    node, watch = snapshot.gpus, snapshot.gpu_watch
    yield from _cost("full", node)
    yield from _cost("watch", watch)
    if node is None:
        return
    newest = watch if watch is not None and watch.at >= node.at else None
    lost = {one.uuid: one for one in (*node.lost, *(newest.lost if newest else ()))}
    here = [gpu for gpu in node.gpus if gpu.uuid not in lost]
    yield Sample(GPUS, (), len(here))
    for one in lost.values():
        if one.uuid:
            yield Sample(UP, (one.uuid, str(one.index)), 0)
    for gpu in _updated(here, newest):
        yield from _gpu(gpu, node.driver_version)


def _gpu(gpu: GpuReading, driver: str) -> Iterator[Sample]:
    one = (gpu.uuid, str(gpu.index))
    mig = {None: "", True: "enabled", False: "disabled"}[gpu.mig_mode]
    yield Sample(UP, one)
    yield Sample(INFO, (*one, gpu.name, driver, gpu.vbios, gpu.bus_id, gpu.serial, mig))
    yield from _gpu_samples(gpu)


def _updated(gpus: list[GpuReading], watch: NodeWatch | None) -> Iterator[GpuReading]:
    """The full readings, with what the watch has seen since."""
    looks = {one.uuid: one for one in watch.gpus} if watch else {}
    for gpu in gpus:
        look = looks.get(gpu.uuid)
        yield (
            gpu
            if look is None
            else msgspec.structs.replace(
                gpu,
                utilization_ratio=look.utilization_ratio,
                memory_utilization_ratio=look.memory_utilization_ratio,
                power_instant_watts=gpu.power_instant_watts and look.power_watts,
            )
        )


def _cost(name: str, read: NodeGpus | NodeWatch | None) -> Iterator[Sample]:
    if read is not None:
        yield Sample(READ, (name,), read.read_seconds)
        yield Sample(READ_CPU, (name,), read.cpu_seconds)


def _gpu_samples(gpu: GpuReading) -> Iterator[Sample]:
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
    (PER_GPU.gauge("gpu_utilization_ratio", "Time in which any kernel ran: 1 while a rank waits in a collective, too."),
     lambda g: g.utilization_ratio),
    (PER_GPU.gauge("gpu_memory_utilization_ratio", "Time in which memory was read or written."),
     lambda g: g.memory_utilization_ratio),
    (PER_GPU.gauge("gpu_graphics_active_ratio", "Time in which any context was active, by GPM."),
     lambda g: g.activity.graphics_ratio if g.activity else None),
    (PER_GPU.gauge("gpu_sm_active_ratio", "Time in which multiprocessors had work, averaged over them, by GPM."),
     lambda g: g.activity.sm_active_ratio if g.activity else None),
    (PER_GPU.gauge("gpu_sm_occupancy_ratio", "Warps on the multiprocessors, of those that fit, by GPM."),
     lambda g: g.activity.sm_occupancy_ratio if g.activity else None),
    (PER_GPU.gauge("gpu_dram_active_ratio", "Memory bandwidth used, of what is possible, by GPM."),
     lambda g: g.activity.dram_ratio if g.activity else None),
    (PER_GPU.gauge("gpu_tensor_active_ratio", "Time in which tensor pipes worked, by GPM.", "pipe"),
     lambda g: g.activity.tensor_ratio if g.activity else {}),
    (PER_GPU.gauge("gpu_memory_bytes", "Memory by state; reserved is what the driver keeps.", "state"),
     lambda g: {"used": g.memory_used_bytes, "free": g.memory_free_bytes, "reserved": g.memory_reserved_bytes}),
    (PER_GPU.gauge("gpu_memory_size_bytes", "Memory of the board."), lambda g: g.memory_total_bytes),
    (PER_GPU.gauge("gpu_processes", "Processes with a compute context."),
     lambda g: None if g.processes is None else len(g.processes)),
    (PER_GPU.gauge("gpu_process_memory_bytes", "Memory of all processes with a compute context."),
     lambda g: _sum([p.memory_bytes for p in g.processes]) if g.processes else None),
    # --- power, heat, clocks -------------------------------------------------------------------------
    (PER_GPU.gauge("gpu_power_watts", "Power drawn: averaged over a second, and at the moment.", "kind"),
     lambda g: {"average": g.power_average_watts, "instant": g.power_instant_watts}),
    (PER_GPU.gauge("gpu_power_limit_watts", "Power limit that is in force."), lambda g: g.power_limit_watts),
    (PER_GPU.gauge("gpu_power_limit_default_watts", "Power limit as the board was made."),
     lambda g: g.power_limit_default_watts),
    (PER_GPU.counter("gpu_energy_joules",
                   "Energy used since the driver was loaded, as it was up to a minute before the read: rate() needs a window of 2 minutes"
                   f" or more{MONOTONE}."),
     lambda g: g.energy_joules),
    (PER_GPU.gauge("gpu_temperature_celsius", "Temperature.", "sensor"),
     lambda g: {"core": g.temperature_celsius, "memory": g.memory_temperature_celsius}),
    (PER_GPU.gauge("gpu_temperature_margin_celsius", "How much warmer the GPU may get before its clocks are cut."),
     lambda g: g.temperature_margin_celsius),
    (PER_GPU.gauge("gpu_temperature_limit_celsius",
                 "Temperatures at which something is done.", "limit", importance=Importance.DETAIL),
     lambda g: g.temperature_limits_celsius),
    (PER_GPU.gauge("gpu_clock_hertz", "Clock now.", "domain"), lambda g: g.clock_hertz),
    (PER_GPU.gauge("gpu_clock_max_hertz", "Clock at most.", "domain", importance=Importance.DETAIL),
     lambda g: g.clock_max_hertz),
    (PER_GPU.gauge("gpu_performance_state",
                 "Performance state: 0 is the fastest, 15 the slowest.", importance=Importance.DETAIL),
     lambda g: g.performance_state),
    (PER_GPU.gauge("gpu_clock_event_active", "State set: 1 for each reason that keeps the clocks low now.", "reason"),
     _states(CLOCK_EVENTS, lambda g: g.clock_events)),
    (PER_GPU.counter("gpu_clock_event_seconds",
                   "Time that clocks were kept low; absent until a movement has proved the driver's unit, which drivers disagree"
                   f" about{MONOTONE}.", "reason"),
     lambda g: g.clock_event_seconds),
    # --- memory errors -------------------------------------------------------------------------------
    (PER_GPU.counter("gpu_ecc_errors", f"Memory errors that ECC found{MONOTONE}.", "type", "location", "scope",
                   importance=Importance.DETAIL), _ecc),
    (PER_GPU.gauge("gpu_ecc_mode", "1 while ECC is on.", importance=Importance.DETAIL), lambda g: _number(g.ecc_mode)),
    (PER_GPU.counter("gpu_remapped_rows", f"Rows of memory that were replaced by spare ones{MONOTONE}.", "cause"),
     _remapped),
    (PER_GPU.gauge("gpu_remapped_rows_pending", "1 where a reset will replace rows."),
     lambda g: _number(g.remapped_rows.pending if g.remapped_rows else None)),
    (PER_GPU.gauge("gpu_remapped_rows_failed", "1 where a row could not be replaced: reason to return the board."),
     lambda g: _number(g.remapped_rows.failed if g.remapped_rows else None)),
    (PER_GPU.gauge("gpu_remap_banks",
                 "Banks of memory by the spare rows that they have left.", "availability", importance=Importance.DETAIL),
     lambda g: g.remapped_rows.banks if g.remapped_rows else {}),
    (PER_GPU.gauge("gpu_retired_pages", "Pages of memory that are not used any more (before Ampere).", "cause"),
     lambda g: g.retired_pages),
    (PER_GPU.gauge("gpu_retired_pages_pending", "1 where the next load of the driver will retire pages."),
     lambda g: _number(g.retired_pages_pending)),
    # --- links ---------------------------------------------------------------------------------------
    (PER_GPU.gauge("gpu_pcie_link_generation", "PCIe generation now; it falls while the GPU is idle."),
     lambda g: g.pcie_generation),
    (PER_GPU.gauge("gpu_pcie_link_generation_max", "PCIe generation at most."), lambda g: g.pcie_generation_max),
    (PER_GPU.gauge("gpu_pcie_link_width_lanes", "PCIe lanes now."), lambda g: g.pcie_width),
    (PER_GPU.gauge("gpu_pcie_link_width_max_lanes", "PCIe lanes at most."), lambda g: g.pcie_width_max),
    (PER_GPU.counter("gpu_pcie_replays", f"PCIe packets that were sent again{MONOTONE}."), lambda g: g.pcie_replays),
    (PER_GPU.counter("gpu_pcie_errors", f"PCIe errors as the GPU sees them{MONOTONE}.", "kind", importance=Importance.DETAIL),
     lambda g: g.pcie_errors),
    (PER_GPU.counter("gpu_pcie_receive_bytes", f"Bytes to the GPU since the agent's first read{MONOTONE}."),
     lambda g: g.pcie_receive_bytes),
    (PER_GPU.counter("gpu_pcie_transmit_bytes", f"Bytes from the GPU since the agent's first read{MONOTONE}."),
     lambda g: g.pcie_transmit_bytes),
    (PER_GPU.gauge("gpu_nvlink_fabric_ready",
                 "1 where the GPU has joined its NVLink fabric (Fabric Manager), 0 where it has not."),
     lambda g: None if g.fabric is None else float(g.fabric.state == "completed" and not g.fabric.status)),
    (PER_GPU.gauge("gpu_nvlink_up", "1 where the link is up.", "link", importance=Importance.DETAIL),
     lambda g: {str(nvlink.link): _number(nvlink.up) for nvlink in g.nvlinks}),
    (PER_GPU.counter("gpu_nvlink_errors",
                   f"NVLink errors of all links; crc_data and ecc_data grow on healthy links{MONOTONE}.", "kind"),
     lambda g: {kind: nvlink_errors(g, kind) for kind in ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")}),
    (PER_GPU.counter("gpu_nvlink_receive_bytes", f"Data bytes over all links to the GPU{MONOTONE}."),
     lambda g: g.nvlink_receive_bytes),
    (PER_GPU.counter("gpu_nvlink_transmit_bytes", f"Data bytes over all links from the GPU{MONOTONE}."),
     lambda g: g.nvlink_transmit_bytes),
    # --- what to do ----------------------------------------------------------------------------------
    (PER_GPU.gauge("gpu_persistence_mode", "1 where the driver stays loaded without users.", importance=Importance.DETAIL),
     lambda g: _number(g.persistence_mode)),
    (PER_GPU.gauge("gpu_recovery_action", "State set: 1 for what the driver asks for.", "action"),
     _states(RECOVERY_ACTIONS, lambda g: g.recovery_action)),
)
# fmt: on


def create(options: NoOptions) -> MetricGroup:
    """Build the group of metrics `gpus`."""
    return MetricGroup((*TABLE.families, *PER_GPU.families), samples)
