"""All nodes and runs: what stands, what is broken, and where to look next."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from parts import (  # fmt: skip
    BAD,
    GOOD,
    ODD,
    IncidentsBuilder,
    Panel,
    board,
    lines,
    link,
    number,
    page,
    plain,
    rows,
    runbook,
    to_board,
)

SAME = "* on (instance, run) group_left (run_across_nodes) mldebug:run_across_nodes:info"
# names are pseudonyms that differ from node to node, unless agent.public_names
RUNS = f"topk by (run_across_nodes) (1, max by (run_across_nodes, name, user) (mldebug_run_info {SAME}))"
STEP = f"max by (run_across_nodes) (mldebug_run_step {SAME})"
FIRING = 'ALERTS{alertname=~"Mldebug.*", alertstate="firing"}'
SINCE = "time() - mldebug_incident_since_timestamp_seconds"


def build() -> Dashboard:
    """The first one to open at night."""
    made = board("mldebug-cluster", "mldebug: cluster", "All nodes and runs: what stands, what is broken, where to look next.")  # fmt: skip
    made.annotation(IncidentsBuilder())
    for panel in (*_figures(), *_wrong(), *_runs()):
        made.with_panel(panel)
    return made


def _figures() -> tuple[Panel, ...]:
    bad = ((0.0, GOOD), (1.0, BAD))
    return (
        number("Runs that stand", "Runs with an open stall. Any at all needs somebody.", "none",
               "mldebug:runs_stalled:count", *bad).links([runbook("MldebugRunStalled")]),
        number("Runs", "Training runs that any agent sees.", "none",
               f"count({RUNS}) or vector(0)"),
        number("GPUs with something to do", "GPUs for which an action is suggested: the table below says which.", "none",
               'count(count by (uuid) (mldebug_suggested_action_info{uuid!=""})) or vector(0)', (0.0, GOOD), (1.0, ODD)),
        number("Agents that do not answer", "Nodes that nobody watches: the scrape of their agent fails.", "none",
               'count(up{job="mldebug"} == 0) or vector(0)', *bad).links([runbook("MldebugAgentDown")]),
    )  # fmt: skip


def _wrong() -> tuple[Panel, ...]:
    report = link("Report", "${reports}/${__data.fields.report}")
    job = to_board("mldebug-job", "run_across_nodes", "run")
    book = link("What to do", "${docs}/runbooks/${__data.fields.alertname}.md")
    return (
        rows("Open incidents", "Jobs that stand or have ended badly, and the verdict so far. A row leads to the report and to the job.",
             "s", (f"({SINCE}) * on (instance, run) group_right () mldebug_incident_open_info {SAME}", "Open for"),
             instance="Node").data_links([report, link("Job", job)]),
        rows("Alerts that fire", "Rules of mldebug that fire now, and for how long they have been true. A row leads to what to do.",
             "s", (f"(time() - ALERTS_FOR_STATE) and ignoring (alertstate) {FIRING}", "True for")).data_links([book]),
        rows("What to do about hardware", "Suggested actions: of how many GPUs (1 where it is the node itself).",
             "none", ("count by (instance, component, action, reason_code) (mldebug_suggested_action_info)", "GPUs"))
        .data_links([link("Node", to_board("mldebug-node", "instance", "node"))])
        .links([page("How GPUs are judged", "gpus")]),
    )  # fmt: skip


def _runs() -> tuple[Panel, ...]:
    return (
        plain(rows("Each run", "Who trains, and how it goes: a run that does not move has no steps and a growing silence.",
             "s", (f"{RUNS} * on (run_across_nodes) group_left () mldebug:run_progress_age:seconds", "No progress for"),
             (f"{RUNS} * on (run_across_nodes) group_left () mldebug:run_steps:rate5m", "Steps/s"),
             (f"{RUNS} * on (run_across_nodes) group_left () {STEP}", "Step")), "Steps/s", "Step")
        .data_links([link("Job", to_board("mldebug-job", "run_across_nodes", "run"))]),
        lines("Time without progress", "Seconds since each run last moved, by its best informed node: a slope that does not end is a hang.",
              "s", ("mldebug:run_progress_age:seconds", "{{run_across_nodes}}")).links([runbook("MldebugRunStalled")]),
        lines("GPUs: busy, and at work", "Means of all GPUs. Busy without power is waiting: a rank that waits in a collective keeps its GPU at 100 %.",
              "percentunit", ("avg(mldebug_gpu_utilization_ratio)", "busy"),
              ("avg(mldebug:gpu_power_of_limit:ratio)", "power, of the limit"), ceiling=1),
    )  # fmt: skip
