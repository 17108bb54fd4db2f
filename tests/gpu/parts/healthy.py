"""Training with evaluation on one rank, checkpoints and compilation, under an agent with the settings as shipped: no alarm."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu import world
from gpu.hanging import reports_of, run_of
from gpu.hangs import JOB
from gpu.parts.agent import watched

SPAN = "MLDEBUG_GPU_HEALTHY"  # seconds


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Look at it all the time; at the end what the agent took."""
    seconds = float(os.environ.get(SPAN, "430"))
    with (
        world.agent(folder) as agent,
        world.job(folder, "--fault", "healthy", *options, script=JOB) as job,
    ):
        job.wait_for_step(60, 120)
        began, first, stages = time.monotonic(), job.step, set()
        cost = watched(agent, min(60.0, seconds / 2))
        while time.monotonic() - began < seconds:
            snap = agent.snapshot()
            run_state = run_of(snap, job) if snap else None
            stages |= {run_state.stage} if run_state else set()
            job.alive()
            time.sleep(1)
        spent = time.monotonic() - began
        yield "seconds", round(spent)
        yield "steps", job.step - first
        yield "stages", sorted(stages)
        yield "reports", len(reports_of(agent, job))
        yield "agent", cost
        yield "log", agent.log[-1000:]
        assert not reports_of(agent, job), "an alarm, and nothing was wrong"
