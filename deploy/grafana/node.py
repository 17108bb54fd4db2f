"""A node and its GPUs: what is broken, what is hot, what waits."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from parts import (
    BAD,
    GOOD,
    GPU,
    NODE,
    ODD,
    IncidentsBuilder,
    Panel,
    board,
    lines,
    number,
    page,
    rows,
    runbook,
    states,
)  # fmt: skip

HERE = 'instance=~"$node"'
ONE = f'{HERE}, gpu=~"$gpu"'
NAME = "{{instance}} GPU {{gpu}}"
RATE = "[$__rate_interval]"


def build() -> Dashboard:
    """For the one who has to drain it, or not."""
    made = board("mldebug-node", "mldebug: node and GPU", "A node and its GPUs: what is broken, what is hot, what waits.", NODE, GPU)  # fmt: skip
    made.annotation(IncidentsBuilder(HERE))
    for panel in (*_agent(), *_health(), *_load(), *_heat(), *_traffic()):
        made.with_panel(panel)
    return made


def _agent() -> tuple[Panel, ...]:
    cost = " + ".join(f"sum(rate(mldebug_agent_{name}seconds_total{{{HERE}}}{RATE}))" for name in ("cpu_", "children_cpu_"))  # fmt: skip
    return (
        number("Age of these figures", "Since the agent last looked. Where it grows, its main loop hangs: trust nothing below.", "s",
               f"max(time() - mldebug_snapshot_timestamp_seconds{{{HERE}}})", (0.0, GOOD), (60.0, BAD))
        .links([runbook("MldebugAgentHangs")]),
        number("GPUs that answer", "Of all that answered before; a GPU that fell off the bus is missing here.", "percentunit",
               f"avg(mldebug_gpu_up{{{ONE}}})", (0.0, BAD), (1.0, GOOD)).links([runbook("MldebugGpuMissing")]),
        number("Host memory in use", "The fullest: all memory of a host, or the limit of a control group that ranks are in.", "percentunit",
               f"max(mldebug_memory_used_bytes{{{HERE}}} / mldebug_memory_limit_bytes{{{HERE}}})", (0.0, GOOD), (0.9, ODD), (0.95, BAD))
        .links([runbook("MldebugMemoryNearlyFull")]),
        number("CPU of the agents", "Cores that the chosen agents use, their children included.", "none", cost),
    )  # fmt: skip


def _health() -> tuple[Panel, ...]:
    names = ("healthy", "unknown", "degraded", "unhealthy")
    code = " or ".join(f'mldebug_component_health{{{HERE}, state="{name}"}} * {value}' for value, name in enumerate(names))  # fmt: skip
    xids = (
        f"time() - max by (instance, gpu, xid) (mldebug_gpu_xid_last_timestamp_seconds{{{HERE}}})"
    )
    events = (
        f"time() - max by (instance, kind) (mldebug_kernel_event_last_timestamp_seconds{{{HERE}}})"
    )
    return (
        states("Health of components", "The agent's judgement, by its own thresholds; of GPUs the worst one.",
               (f"max by (instance, component) ({code})", "{{instance}} {{component}}"),
               ("healthy", GOOD), ("unknown", "gray"), ("degraded", ODD), ("unhealthy", BAD))
        .links([page("How GPUs are judged", "gpus")]),
        rows("What to do", "Suggested actions: of how many GPUs (1 where it is the node itself).", "none",
             (f"count by (instance, component, action, reason_code) (mldebug_suggested_action_info{{{HERE}}})", "GPUs"),
             instance="Node").links([runbook("MldebugGpuUnhealthy")]),
        rows("Xid errors", "How long ago the last of each was. The catalogue says what a number means and whose fault it mostly is.", "s",
             (xids, "Ago"), instance="Node", gpu="GPU", xid="Xid").links([runbook("MldebugGpuXidFatal"), page("Kernel log", "kernel-log")]),
        rows("Other kernel events", "How long ago the last of each kind was: OOM kills, PCIe and disk errors, hung tasks.", "s",
             (events, "Ago"), instance="Node", kind="Event").links([page("Kernel log", "kernel-log")]),
    )  # fmt: skip


def _load() -> tuple[Panel, ...]:
    used = f'mldebug_gpu_memory_bytes{{{ONE}, state="used"}}'
    return (
        lines("Busy", "Time in which any kernel ran. 100 % is also a rank that waits in a collective: look at the power.", "percentunit",
              (f"mldebug_gpu_utilization_ratio{{{ONE}}}", NAME), ceiling=1),
        lines("Power, of the limit", "A GPU that trains is near its limit, one that only waits is not.", "percentunit",
              (f"mldebug:gpu_power_of_limit:ratio{{{ONE}}}", NAME), ceiling=1),
        lines("Tensor pipes and memory bandwidth", "What the kernels really use. One GPU below the others makes all wait.", "percentunit",
              (f"max by (instance, gpu) (mldebug_gpu_tensor_active_ratio{{{ONE}}})", f"{NAME} tensor"),
              (f"mldebug_gpu_dram_active_ratio{{{ONE}}}", f"{NAME} memory"), ceiling=1),
        lines("GPU memory in use", "Memory that stays when no job runs belongs to a process that is left over.", "percentunit",
              (f"{used} / ignoring (state) mldebug_gpu_memory_size_bytes{{{ONE}}}", NAME), ceiling=1),
    )  # fmt: skip


def _heat() -> tuple[Panel, ...]:
    repaired = f"sum by (instance, gpu, cause) (mldebug_gpu_remapped_rows_total{{{ONE}}})"
    wrong = f'sum by (instance, gpu, type) (mldebug_gpu_ecc_errors_total{{{ONE}, location="total", scope="volatile"}})'  # fmt: skip
    return (
        lines("Room until clocks are cut", "Degrees that a GPU may still get warmer. One GPU far below its neighbours: airflow or paste.",
              "celsius", (f"mldebug_gpu_temperature_margin_celsius{{{ONE}}}", NAME)).links([runbook("MldebugGpuThrottled")]),
        lines("Clocks cut by heat or power supply", "Share of the last 10 minutes. The slowest GPU sets the pace of the whole job.",
              "percentunit", (f"mldebug:gpu_throttled:ratio10m{{{ONE}}}", NAME), ceiling=1).links([runbook("MldebugGpuThrottled")]),
        lines("Memory errors", "Since the driver was loaded. Corrected ones do no harm; uncorrected ones end jobs.", "none",
              (wrong, f"{NAME} {{{{type}}}}")),
        lines("Memory rows replaced", "In the life of the board. `uncorrectable` rows that become more often are a reason to return it.",
              "none", (repaired, f"{NAME} {{{{cause}}}}")).links([runbook("MldebugGpuMemoryErrors")]),
    )  # fmt: skip


def _traffic() -> tuple[Panel, ...]:
    def both(bus: str) -> str:
        return " + ".join(f"rate(mldebug_gpu_{bus}_{way}_bytes_total{{{ONE}}}{RATE})" for way in ("receive", "transmit"))  # fmt: skip

    return (
        lines("NVLink", "Both directions. A GPU that is alone at 0 has left the collective.", "Bps", (both("nvlink"), NAME))
        .links([runbook("MldebugNvlinkDown")]),
        lines("PCIe", "Both directions: input, and saves.", "Bps", (both("pcie"), NAME)),
    )  # fmt: skip
