"""Jobs that tell no step, and that nobody touched: when each hang is noticed, who is named, and what a healthy one costs.

MLDEBUG_GPU_STALL is the section `stall` of the agent's config (`{}`: the settings as shipped), MLDEBUG_GPU_HANGS which trials, with commas.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpu import world
from gpu.hanging import Eye, diagnosis_of, poll, reports_of, run_of
from gpu.hangs import gpus_of, kept
from gpu.parts.agent import watched
from processes.harness import wait_for

JOB = world.ROOT / "tests" / "jobs" / "stepless.py"
STALL = "MLDEBUG_GPU_STALL"
WANTED = "MLDEBUG_GPU_HANGS"
KEEP = "MLDEBUG_GPU_KEEP"
AFTER = 25.0  # seconds until the fault comes
START = 75.0  # seconds until a framework trains
LATE = 45.0  # seconds after which no report comes any more
DEFAULT = "{timeout: 15s, interval: 1s}"
HEALTHY = 60.0
NOBODY: tuple[int, ...] = ()


class Trial(msgspec.Struct, frozen=True):
    """A fault, what trains, and who may be named."""

    name: str
    fault: str
    loop: str
    named: tuple[tuple[int, ...], ...]


TRIALS = (
    Trial("lightning-both-spin", "both", "lightning", (NOBODY,)),
    Trial("lightning-blocked-and-spin", "blocked", "lightning", ((1,),)),
    Trial("trainer-worker", "worker", "trainer", ((1,),)),
    Trial("barrier-at-start", "barrier", "hand", (NOBODY,)),
    Trial("lightning-healthy", "healthy", "lightning", (NOBODY,)),
    Trial("hand-both-spin", "both", "hand", (NOBODY,)),
    Trial("trainer-blocked-and-spin", "blocked", "trainer", ((1,),)),
)
STANDARD = 5  # as many as nine minutes hold


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """One after the other, under one agent; what fails in one does not keep the others."""
    wanted = [name for name in os.environ.get(WANTED, "").split(",") if name]
    trials = [one for one in TRIALS if one.name in wanted] or TRIALS[:STANDARD]
    stall = os.environ.get(STALL, DEFAULT)
    timeout = 15.0 if stall == DEFAULT else 60.0
    for trial in trials:
        try:
            with world.agent(folder, stall) as agent:
                yield trial.name, _tried(folder, agent, trial, timeout)
        except (AssertionError, OSError, ValueError) as error:
            yield trial.name, {"result": "failed", "error": f"{type(error).__name__}: {error}"[:1500]}  # fmt: skip


def _tried(folder: Path, agent: Any, trial: Trial, timeout: float) -> dict[str, Any]:
    options = ("--fault", trial.fault, "--loop", trial.loop, "--after", str(AFTER))
    with world.job(folder, *options, script=JOB) as job:
        eye = Eye(agent, job)
        if trial.fault == "healthy":
            return _healthy(eye)
        poll(eye, lambda: job.alive() and job.struck_at() is not None, START + AFTER)
        struck = job.struck_at()
        assert struck is not None, f"it did not strike: {job.tail()}"
        poll(eye, lambda: bool(reports_of(agent, job)), timeout + LATE)
        came = world.now()
        time.sleep(2)
        found = reports_of(agent, job)
        kept(agent, Path(os.environ.get(KEEP, folder)) / f"stepless-{trial.name}")
        row = {
            "timeout": timeout,
            "gpus": gpus_of(eye),
            "said": _sentences(eye),
            "reports": len(found),
        }
        if not found:
            return row | {"result": "NOT NOTICED", "log": agent.log[-1500:]}
        result = diagnosis_of(found[0])
        named = tuple(one.get("rank") for one in result["culprits"] or ())
        right = named in trial.named or not named
        return row | result | {
            "result": ("right" if named in trial.named else "unnamed") if right else "WRONG",
            "named": list(named),
            "seconds_after_timeout": round(came - struck - timeout, 1),
        }  # fmt: skip


def _healthy(eye: Eye) -> dict[str, Any]:
    """Seconds of training, in which nothing may be said."""
    trained = eye.job.events / "trained.0"
    wait_for(f"its steps: {eye.job.tail()}", lambda: eye.job.alive() and trained.exists(), START)
    first, cost = trained.stat().st_size, watched(eye.agent, HEALTHY / 2)
    poll(eye, lambda: not eye.job.alive(), HEALTHY / 2)
    reports = len(reports_of(eye.agent, eye.job))
    return {
        "result": "right" if not reports else "WRONG",
        "reports": reports,
        "steps": trained.stat().st_size - first,
        "stages": sorted({one.stage for one in eye.observed}),
        "said": _sentences(eye),
        "agent_cpu_percent": cost["cpu_percent"],
        "log": eye.agent.log[-1500:],
    }


def _sentences(eye: Eye) -> list[str]:
    """What the agent's status said last of the run, and what the run lives by."""
    snap = eye.agent.snapshot()
    run_state = run_of(snap, eye.job) if snap else None
    return [run_state.sentence, run_state.lives_by, run_state.devices] if run_state else []
