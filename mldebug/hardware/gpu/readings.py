"""The readings of one node's GPUs at one moment, whatever their vendor.

Base units: ratios 0 to 1, bytes, seconds, joules, watts, hertz, degrees Celsius, unix time. None,
and a key that is not in a dict, mean "could not be read", never zero. A counter is as the driver
gives it until `counters.Counters` has made it monotone; counts of memory errors stay as the driver gives them, per place in the GPU,
beside the sum of all places.
"""

from typing import Literal

from mldebug.core.model import Gap, MeasuredData

NVIDIA = "nvidia"
"""The vendor of GPUs that do not say another one."""

ErrorType = Literal["corrected", "uncorrected"]
Scope = Literal["volatile", "aggregate"]  # since the driver was loaded; since the board was made

# --- the watch read ------------------------------------------------------------------------------


class GpuWatch(MeasuredData, frozen=True, kw_only=True):
    """The quick reading of one GPU, taken every few seconds."""

    uuid: str
    index: int
    bus_id: str = ""
    utilization_ratio: float | None = None  # time with any kernel running
    memory_utilization_ratio: float | None = None  # time with memory traffic
    power_watts: float | None = None
    energy_joules: float | None = (
        None  # counter; only where it was read now: of one GPU at each look
    )
    vendor: str = NVIDIA  # file name of the plugin that read it


LOST = "gpu_is_lost"
"""The one code that says that a GPU is gone for good."""
UNLISTED = "missing"
"""It answered before, and the driver lists other GPUs only."""


class LostGpu(MeasuredData, frozen=True, kw_only=True):
    """A GPU that does not answer now, though it answered before or the driver counts it."""

    index: int
    reason: str
    uuid: str = ""  # "" where it never told it
    bus_id: str = ""
    code: str = ""  # the library's name for the error: gpu_is_lost, unknown, …; or UNLISTED
    vendor: str = NVIDIA


class GpuEvent(MeasuredData, frozen=True, kw_only=True):
    """An event that the driver reported by itself since the last reading, such as an Xid."""

    at: float  # unix, when it was heard: at most one read late
    uuid: str
    index: int
    bus_id: str = ""
    kind: str = "xid"  # "xid", "double_bit_ecc", "recovery_action" …: `nvml.events` has them all
    xid: int | None = None


class NodeWatch(MeasuredData, frozen=True, kw_only=True):
    """The quick readings of all GPUs of the node."""

    at: float
    gpus: tuple[GpuWatch, ...] = ()  # by index
    lost: tuple[LostGpu, ...] = ()
    events: tuple[GpuEvent, ...] = ()  # in order
    gaps: tuple[Gap, ...] = ()
    read_seconds: float = 0.0
    cpu_seconds: float = 0.0


# --- the full read -------------------------------------------------------------------------------


class GpuActivity(MeasuredData, frozen=True, kw_only=True):
    """Averages over `window_seconds` from the GPU's own sampling counters (NVIDIA's GPM)."""

    window_seconds: float
    graphics_ratio: float | None = None  # any context active
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_ratio: dict[str, float] = {}  # by pipe: any, hmma, imma, dfma
    dram_ratio: float | None = None
    nvlink_receive_bytes_per_second: float | None = None
    nvlink_transmit_bytes_per_second: float | None = None
    pcie_receive_bytes_per_second: float | None = None
    pcie_transmit_bytes_per_second: float | None = None


class EccCount(MeasuredData, frozen=True, kw_only=True):
    """Memory errors of one kind. `location` is total, dram, sram, l1, l2, register, texture, shared or cbu."""

    type: ErrorType
    location: str
    scope: Scope
    count: int  # as told: 0 again after a reset
    total: int | None = None  # monotone


class RemappedRows(MeasuredData, frozen=True, kw_only=True):
    """Rows of memory that were replaced by spare ones (Ampere and newer)."""

    corrected: int | None = None  # as told
    uncorrected: int | None = None
    corrected_total: int | None = None  # monotone
    uncorrected_total: int | None = None
    pending: bool | None = None  # a reset will replace some
    failed: bool | None = None  # there was no spare one
    banks: dict[str, int] = {}  # by spare rows that are left: max, high, partial, low, none


class NvLink(MeasuredData, frozen=True, kw_only=True):
    """One NVLink of a GPU (a direct connection to another GPU or a switch), as the last full reading found it.

    `errors` by kind: replay, recovery, crc_flit, crc_data, ecc_data; the last two grow on healthy
    links, too.

    Reading errors takes long, so not every reading asks for them: between, the last values stay.
    `grown` is the growth between the last two readings that asked (`counters.Counters` sets it).
    """

    link: int
    up: bool | None = None
    speed_bytes_per_second: float | None = None
    errors: dict[str, int] = {}
    errors_read: bool = True  # asked at this read; else remembered
    grown: dict[str, int] = {}  # kinds of `errors` that grew
    grown_seconds: float | None = None  # in this time; None before the second read that asked


class GpuFabric(MeasuredData, frozen=True, kw_only=True):
    """How far a GPU has joined its NVLink fabric.

    `status`: NVML's code once `state` is completed; 0 is success.
    """

    state: str  # not_started, in_progress, completed
    status: int = 0
    troubles: tuple[
        str, ...
    ] = ()  # degraded_bandwidth, route_recovery, route_unhealthy, access_timeout_recovery


class GpuProcess(MeasuredData, frozen=True, kw_only=True):
    """A process with a compute context on the GPU. `pid`: its number in the pid namespace of the reader."""

    pid: int
    memory_bytes: int | None = None
    gpu_instance: int | None = None  # of MIG
    active: bool | None = (
        None  # it used the GPU since the full reading before; None: not known, or the only process
    )


class GpuReading(MeasuredData, frozen=True, kw_only=True):
    """All values of one GPU in a full reading; None where the GPU or its driver does not give a value."""

    uuid: str
    index: int
    bus_id: str = ""  # "00000000:3B:00.0"
    minor: int | None = None  # N of /dev/nvidiaN
    name: str = ""
    serial: str = ""
    vbios: str = ""
    architecture: str = ""
    persistence_mode: bool | None = None
    mig_mode: bool | None = None
    mig_instances: tuple[str, ...] = ()  # uuids

    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    activity: GpuActivity | None = None

    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None

    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None  # to the point where clocks are cut
    temperature_margin_before_celsius: float | None = None  # what was answered before that
    temperature_limits_celsius: dict[str, float] = {}  # shutdown, slowdown, memory_max, gpu_max

    power_average_watts: float | None = None
    power_instant_watts: float | None = None
    power_limit_watts: float | None = None  # enforced
    power_limit_default_watts: float | None = None
    power_limit_min_watts: float | None = None
    power_limit_max_watts: float | None = None
    energy_joules: float | None = None  # counter

    performance_state: int | None = None  # 0 is fastest
    clock_hertz: dict[str, float] = {}  # by domain: graphics, sm, memory, video
    clock_max_hertz: dict[str, float] = {}
    clock_events: tuple[str, ...] | None = None  # active reasons, sorted: see CLOCK_EVENTS
    clock_events_known: tuple[str, ...] = ()  # reasons that this GPU can tell
    clock_event_counters: dict[str, int] = {}  # as told, in a unit that drivers disagree about
    clock_event_seconds: dict[str, float] = {}  # counter; by reason, once the unit is known

    ecc_mode: bool | None = None
    ecc: tuple[EccCount, ...] = ()
    remapped_rows: RemappedRows | None = None
    retired_pages: dict[str, int] = {}  # by cause: corrected, uncorrected (before Ampere)
    retired_pages_pending: bool | None = None

    pcie_generation: int | None = None  # falls while idle, to save power
    pcie_generation_max: int | None = None
    pcie_width: int | None = None  # lanes
    pcie_width_max: int | None = None
    pcie_replays: int | None = None  # counter
    pcie_errors: dict[str, int] = {}  # counters, by kind
    pcie_receive_bytes: int | None = None  # counter; 32 bits in the driver
    pcie_transmit_bytes: int | None = None

    nvlinks: tuple[NvLink, ...] = ()
    nvlink_receive_bytes: int | None = None  # counter; data of all links
    nvlink_transmit_bytes: int | None = None

    fabric: GpuFabric | None = None  # None: it has none, or does not tell

    recovery_action: str | None = None  # what the driver asks for: see RECOVERY_ACTIONS
    processes: tuple[GpuProcess, ...] | None = None
    unreadable: dict[str, str] = {}  # what it should tell and did not -> why
    unsupported: tuple[str, ...] = ()  # what this GPU or driver does not know
    vendor: str = NVIDIA


class NodeGpus(MeasuredData, frozen=True, kw_only=True):
    """A full reading of all GPUs of the node, with what could not be read."""

    at: float
    driver_version: str = ""
    library_version: str = ""
    gpus: tuple[GpuReading, ...] = ()  # by index
    lost: tuple[LostGpu, ...] = ()
    gaps: tuple[Gap, ...] = ()
    read_seconds: float = 0.0
    cpu_seconds: float = 0.0
    unread: str = ""  # why the GPUs of one of several vendors are not in here; "" where all are


CLOCK_EVENTS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
RECOVERY_ACTIONS = (
    "none",
    "reset",
    "reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
    "unknown",
)


def ecc_count(reading: GpuReading, type_: ErrorType, location: str, scope: Scope) -> int | None:
    """One count of the ECC table; None where the GPU does not report it."""
    for one in reading.ecc:
        if (one.type, one.location, one.scope) == (type_, location, scope):
            return one.count
    return None


def nvlink_errors(reading: GpuReading, kind: str) -> int | None:
    """Errors of one kind, summed over the links that report it; None where none does."""
    counts = [link.errors[kind] for link in reading.nvlinks if kind in link.errors]
    return sum(counts) if counts else None
