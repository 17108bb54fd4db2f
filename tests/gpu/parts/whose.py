"""Two jobs, each on a card of its own, the other way round than the cards are numbered: whose GPU it is, and nothing broken is reported.

What is joined are the metrics as Prometheus gets them: `mldebug_rank_gpu_info` with the power of each GPU. The truth is where each
job was put (`CUDA_VISIBLE_DEVICES` with a UUID), and what nvidia-smi says of the same processes where it lists them.
"""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpu import world
from gpu.hanging import reports_of, run_of
from mldebug.hardware.health.model import BAD
from mldebug.status.snapshot import Snapshot
from mldebug_agents.web.unix_http import UnixConnection
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent

SPAN = "MLDEBUG_GPU_WHOSE"  # seconds in which nothing may be reported
KNOWN = 60.0  # seconds until each rank's GPU is known
EVERY = 5.0
Series = Mapping[str, list[tuple[dict[str, str], float]]]


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Start both, wait until both are joined, and watch them; it fails only after all is told."""
    first, second = cards()[:2]
    seconds = float(os.environ.get(SPAN, "150"))
    with (
        world.agent(folder) as agent,
        world.job(folder, "--ddp", *options, ranks=1, more=on(second)) as one,
        world.job(folder, "--ddp", *options, ranks=1, more=on(first)) as other,
    ):
        placed = [(one, second), (other, first)]
        before = of_the_node(wait_for("the kernel's log", lambda: _judged(agent), KNOWN))
        for job, _ in placed:
            job.wait_for_step(20, 90)
        wait_for("both ranks' GPUs", lambda: len(joined(scrape(agent))) == len(placed), KNOWN)
        rows, troubles = [], set()
        began = time.monotonic()
        while not rows or time.monotonic() - began < seconds:
            series, snap = scrape(agent), agent.snapshot()
            assert snap is not None, f"the agent does not answer: {agent.log[-1500:]}"
            rows = [_row(series, snap, job, uuid) for job, uuid in placed]
            troubles |= {f"{row['uuid']} is not joined right" for row in rows if not row["right"]}
            troubles |= broken(snap, before)
            time.sleep(EVERY)
        reports = [report["diagnosis"]["summary"] for job, _ in placed for report in reports_of(agent, job)]  # fmt: skip
        yield "rows", rows
        yield "seconds", round(time.monotonic() - began)
        yield "before", sorted(before)
        yield "troubles", sorted(troubles)
        yield "reports", reports
        yield "log", agent.log[-1000:]
        wrong = sorted(troubles) + reports
        assert not wrong, f"not as it should be: {wrong}"


def cards() -> list[str]:
    """The UUIDs of the GPUs, in the driver's order."""
    parts = world.ask_smi("--query-gpu=uuid", "--format=csv,noheader").split()
    assert len(parts) > 1, f"two GPUs are needed, there are {len(parts)}"
    return parts


def on(uuid: str) -> dict[str, str]:
    """The environment of a job that has this GPU alone."""
    return {"CUDA_VISIBLE_DEVICES": uuid}


def scrape(agent: RunningAgent) -> Series:
    """All samples of ours by name, with their labels."""
    link = UnixConnection(agent.state)
    try:
        link.request("GET", "/metrics")
        text = link.getresponse().read().decode()
    finally:
        link.close()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def joined(series: Series) -> dict[tuple[str, str], dict[str, float]]:
    """(run, rank) -> GPU -> watts: what `mldebug_gpu_power_watts * on (uuid) group_left (run, rank) mldebug_rank_gpu_info` gives."""
    watts = {labels["uuid"]: value for labels, value in series.get("mldebug_gpu_power_watts", ()) if labels.get("kind", "instant") == "instant"}  # fmt: skip
    found: dict[tuple[str, str], dict[str, float]] = {}
    for labels, _ in series.get("mldebug_rank_gpu_info", ()):
        if labels["uuid"] in watts:
            of_rank = found.setdefault((labels["run"], labels["rank"]), {})
            of_rank[labels["uuid"]] = watts[labels["uuid"]]
    return found


def _row(series: Series, snapshot: Snapshot, job: world.Job, uuid: str) -> dict[str, Any]:
    run = run_of(snapshot, job)
    entry = joined(series).get((run.id, "0"), {}) if run else {}
    listed = by_smi(job)
    memory = [value for labels, value in series.get("mldebug_rank_gpu_memory_bytes", ()) if run and labels["run"] == run.id]  # fmt: skip
    return {
        "uuid": uuid,
        "run": run.id if run else "",
        "joined": entry,
        "memory_bytes": memory,
        "nvidia_smi": listed,
        "right": list(entry) == [uuid] and listed in ([], [uuid]),
    }


def by_smi(job: world.Job) -> list[str]:
    """The GPUs of this job's processes as nvidia-smi lists them; empty where it sees other pids, as in a container."""
    lines = world.ask_smi("--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")
    pairs = [line.split(", ") for line in lines.splitlines() if ", " in line]
    return sorted({pair[1].strip() for pair in pairs if pair[0].strip().isdecimal() and int(pair[0]) in job.pids})  # fmt: skip


def _judged(agent: RunningAgent) -> Snapshot | None:
    snap = agent.snapshot()
    return snap if snap and snap.health else None


def of_the_node(snapshot: Snapshot) -> set[str]:
    """What the kernel's log of the last hours says against this node, by component: no matter of these jobs."""
    return {one.component for one in snapshot.health if one.state in BAD and not one.uuid}


def broken(snapshot: Snapshot, before: Collection[str]) -> set[str]:
    """What the agent says is wrong: with any GPU, with the node beside what was wrong `before`, with a run."""
    ill = {
        f"{one.component} {one.uuid} is {one.state}: {one.reason}"
        for one in snapshot.health
        if one.state in BAD and (one.uuid or one.component not in before)
    }
    return ill | {f"run {run.id} is {run.stage}" for run in snapshot.runs if str(run.stage) == "stalled"}  # fmt: skip
