"""One run: does it move, how fast, what do its ranks do, and which incidents has it had."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import DashboardLink

from parts import (
    BAD,
    GOOD,
    ODD,
    OWN,
    RUN,
    STEPS,
    IncidentsBuilder,
    Panel,
    board,
    lines,
    link,
    number,
    page,
    rows,
    runbook,
    stacked,
    to_board,
)  # fmt: skip

MINE = 'run=~"$own"'  # on all its nodes
ALL = 'run_across_nodes="$run"'
SILENCE = f"time() - max(mldebug_run_progress_timestamp_seconds{{{MINE}}})"
SINCE = f"time() - mldebug_incident_since_timestamp_seconds{{{MINE}}}"


def build() -> Dashboard:
    """For the one whose job it is."""
    made = board("mldebug-job", "mldebug: job", "One run: does it move, how fast, what do its ranks do, and which incidents has it had.", RUN, OWN)  # fmt: skip
    made.annotation(IncidentsBuilder(MINE))
    for panel in (*_figures(), *_incident(), *_progress(), *_gpus(), *_ranks()):
        made.with_panel(panel)
    return made


def _figures() -> tuple[Panel, ...]:
    lost = f"min(mldebug_checkpoint_work_lost_seconds{{{MINE}}})"
    return (
        number("Moves", "1 while no incident of the run is open, 0 while one is. Empty once the run has ended.", "bool_yes_no",
               f"min(mldebug_run_up{{{MINE}}})", (0.0, BAD), (1.0, GOOD)).links([runbook("MldebugRunStalled")]),
        number("No progress for", "Since its last step, record of its log, or other sign that it moves.", "s", SILENCE),
        number("Step", "The last step that its log or its hooks told.", "none", f"max(mldebug_run_step{{{MINE}}})"),
        number("Lost if it ends now", "Time since its newest complete checkpoint was begun.", "s", lost)
        .links([page("How checkpoints are judged", "checkpoints")]),
    )  # fmt: skip


def _incident() -> tuple[Panel, ...]:
    report = link("Report", "${reports}/${__data.fields.report}")
    stands = f"* on (instance, run) group_left () ({SINCE})"
    return (
        rows("Open incident", "Since when it stands, and the verdict so far; the report names the culprit and says what to do.",
             "s", (f"({SINCE}) * on (instance, run) group_right () mldebug_incident_open_info{{{MINE}}}", "Open for"),
             instance="Node").data_links([report]).links([runbook("MldebugRunStalled")]),
        rows("Ranks of the open incident", "What the last stack sample shows each rank in. Those in `collective` wait for one that is not.",
             "s", (f"mldebug_rank_class_info{{{MINE}}} {stands}", "Stands for"), rank="Rank")
        .data_links([link("Node", to_board("mldebug-node", "instance", "node"))]),
        lines("Silence, of the stall timeout", "An incident opens at 100 %. The timeout follows the run's own pace.", "percentunit",
              (f"({SILENCE}) / max(mldebug_run_stall_timeout_seconds{{{MINE}}})", "silence"),
              limits=((0.0, GOOD), (0.5, ODD), (1.0, BAD)), ceiling=1),
        stacked("Ranks by what they do", "Stack samples, taken only while somebody suspects a stall. The few that differ are the suspects.",
                "none", (f"sum by (class) (mldebug_run_ranks_by_class{{{MINE}}})", "{{class}}")),
    )  # fmt: skip


def _progress() -> tuple[Panel, ...]:
    return (
        lines("Pace", "Steps a second, mean of 5 minutes. A slow decline is input, heat, or one slow node.", STEPS,
              (f"mldebug:run_steps:rate5m{{{ALL}}}", "pace")),
        lines("Duration of a step", "Median and 99th percentile of 5 minutes. A tail that grows alone is a straggler or input.", "s",
              (f"mldebug:run_step_duration_seconds:p50_5m{{{ALL}}}", "median"),
              (f"mldebug:run_step_duration_seconds:p99_5m{{{ALL}}}", "99 %")),
        lines("Loss", "As its log or its hooks tell it.", "none", (f"max(mldebug_run_loss{{{MINE}}})", "loss")),
        lines("Step of each node", "Of ranks with the hook, the one that is least far on each node: the lowest line keeps the others waiting.",
              "none", (f"min by (instance) (mldebug_run_step_min{{{MINE}}})", "{{instance}}")).links([page("The hook", "hook")]),
    )  # fmt: skip


def _of_rank(series: str) -> str:
    """A series of GPUs as one of this run's ranks. A GPU that several ranks share belongs to each of them."""
    return f"mldebug_rank_gpu_info{{{MINE}}} * on (instance, uuid) group_left () max by (instance, uuid) ({series})"


def _gpus() -> tuple[Panel, ...]:
    """The GPUs of this run's ranks. Empty where it is not known for sure who works where."""
    why: list[Builder[DashboardLink]] = [page("Whose GPU it is", "gpus")]
    name = "rank {{rank}}"
    moved = "(rate(mldebug_port_received_bytes_total[$__rate_interval]) + rate(mldebug_port_sent_bytes_total[$__rate_interval]))"
    links = " + ".join(
        f"rate(mldebug_gpu_nvlink_{way}_bytes_total[$__rate_interval])"
        for way in ("receive", "transmit")
    )
    return (
        lines("GPU utilization of ranks", "Time with a kernel running. Waiting in a collective counts as work here: see power.", "percentunit",
              (_of_rank("mldebug_gpu_utilization_ratio"), name), ceiling=1).links(why),
        lines("GPU multiprocessors of ranks", "Share of the multiprocessors that are at work. No line: the card does not tell it (before Hopper), which is not 0.",
              "percentunit", (_of_rank("mldebug_gpu_sm_active_ratio"), name), ceiling=1).links(why),
        lines("GPU power of ranks", "The one far below the others computes less: it waits, or its clocks are cut.", "watt",
              (_of_rank('mldebug_gpu_power_watts{kind="instant"}'), name)).links(why),
        lines("GPU clocks of ranks", "Of the multiprocessors. One rank with slow clocks slows all others.", "hertz",
              (_of_rank('mldebug_gpu_clock_hertz{domain="sm"} or mldebug_gpu_clock_hertz{domain="graphics"}'), name)).links(why),
        lines("Throttled GPUs of ranks", "Share of ten minutes in which heat or the power supply cut the clocks.", "percentunit",
              (_of_rank("mldebug:gpu_throttled:ratio10m"), name), ceiling=1).links([runbook("MldebugGpuThrottled")]),
        lines("GPU memory of ranks", "What the rank's own process holds, as the driver counts it.", "bytes",
              (f"sum by (rank) (mldebug_rank_gpu_memory_bytes{{{MINE}}})", name)).links(why),
        lines("NVLink of ranks", "Bytes a second in both directions. None while all wait in a collective that does not move.", "Bps",
              (_of_rank(links), name)).links(why),
        lines("Network ports of its nodes", "Bytes a second in both directions, of ports that jobs use.", "Bps",
              (f"{moved} and on (instance, port) (mldebug_port_used == 1) and on (instance) mldebug_run_up{{{MINE}}}", "{{instance}} {{port}}"))
        .links([page("Network ports", "ports")]),
    )  # fmt: skip


def _ranks() -> tuple[Panel, ...]:
    own = f'sum by (rank) (mldebug_memory_rank_bytes{{{MINE}, kind=~"anon|shmem|swap"}})'
    return (
        stacked("Phases", "What ranks with the hook do besides stepping: a save or an evaluation is no stall.", "none",
                (f"sum by (phase) (mldebug_run_ranks_by_phase{{{MINE}}})", "{{phase}}")).links([page("The hook", "hook")]),
        lines("Host memory of ranks", "The ten largest, without what can be read again. A line that only rises is a leak, and ends by the OOM killer.",
              "bytes", (f"topk(10, {own})", "rank {{rank}}")).links([runbook("MldebugMemoryRunsOut")]),
    )  # fmt: skip
