"""What the agent costs beside a job that trains: CPU and memory over a minute, with the settings as shipped."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from gpu import world
from gpu.hanging import run_of
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent

SECONDS = 60.0
Read = tuple[float, float, float]  # when; its seconds by the clock and of CPU


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """Wait until it knows the run and its GPUs, then watch it."""
    with world.agent(folder) as agent, world.job(folder, "--ddp") as job:
        job.wait_for_step(100)
        wait_for("the run and its GPUs", lambda: _knows(agent, job), 45)
        step, began = job.step, world.now()
        yield "agent", watched(agent, SECONDS)
        yield "steps_per_second", round((job.step - step) / (world.now() - began), 2)
        snap = agent.snapshot()
        run = run_of(snap, job) if snap else None
        yield "devices", [run.devices] if run else []
        yield "remarks", [one.error for one in snap.sources if one.error] if snap else []


def _knows(agent: RunningAgent, job: world.Job) -> bool:
    snap = agent.snapshot()
    run = run_of(snap, job) if snap else None
    return bool(run and run.step and len(run.gpus) == world.RANKS)


def watched(agent: RunningAgent, seconds: float) -> dict[str, Any]:
    """CPU of a core in percent and MiB; of the agent, of each child, and of all. Reads as the agent timed them."""
    family = world.family(agent)
    before = {one.pid: _cpu(one) for one in family}
    watch: list[Read] = []
    full: list[Read] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        snap = agent.snapshot()
        _note(watch, snap.gpu_watch if snap else None)
        _note(full, snap.gpus if snap else None)
        time.sleep(2.5)
    elapsed = time.monotonic() - began
    alive = [one for one in family if one.is_running()]
    rows = [_row(one, before[one.pid], elapsed) for one in alive]
    return {
        "seconds": round(elapsed, 1),
        "processes": rows,
        "cpu_percent": round(sum(one["cpu_percent"] for one in rows), 3),
        "agent_rss_mib": rows[0]["rss_mib"],
        "pss_mib": round(sum(one["pss_mib"] for one in rows), 1),
        "watch_read": _reads(watch),
        "full_read": _reads(full),
    }


def _note(known: list[Read], read: NodeWatch | NodeGpus | None) -> None:
    if read is not None and (not known or known[-1][0] < read.at):
        known.append((read.at, read.read_seconds, read.cpu_seconds))


def _reads(reads: list[Read]) -> dict[str, Any]:
    return {
        "count": len(reads),
        "wall_ms": world.milliseconds([one[1] for one in reads]),
        "cpu_ms": world.milliseconds([one[2] for one in reads]),
    }


def _row(process: psutil.Process, before: float, seconds: float) -> dict[str, Any]:
    memory = process.memory_full_info()
    return {
        "pid": process.pid,
        "nvidia": bool(world.device_files(process.pid)),
        "cpu_percent": round(100 * (_cpu(process) - before) / seconds, 3),
        "rss_mib": round(memory.rss / 2**20, 1),
        "pss_mib": round(memory.pss / 2**20, 1),
    }


def _cpu(process: psutil.Process) -> float:
    result = process.cpu_times()
    return float(result.user + result.system)
