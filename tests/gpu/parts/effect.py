"""What the agent does to a training step: blocks with the agent awake and stopped, as tests/bench/effect.py has them.

The agent's watch looks come ten times as often as shipped, so what those do is measured above what a user sees of them. Its
full reads come as often as shipped.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.effect import (
    BLOCK,
    BUDGET,
    EVERY,
    LOOK,
    RECORD,
    SHIPPED,
    Quadruple,
    clock,
    cpu,
    interval,
    quadruples,
)
from gpu import world
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent

SECONDS = 64.0
PLACEBO = 12.0


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """A job that records its steps, and the agent by turns."""
    times = folder / "times"
    times.touch()
    with (
        world.agent(folder, f"{{interval: {LOOK}}}") as agent,
        world.job(folder, "--ddp", "--times", str(times)),
    ):
        wait_for("200 steps", lambda: times.stat().st_size > 200 * RECORD.size, 60)
        wait_for("the run", lambda: _steps(agent), 30)
        yield "noise", percent(list(quadruples(times, agent, _count(PLACEBO), placebo=True)))
        began, before = time.monotonic(), cpu(agent)
        found = list(quadruples(times, agent, _count(SECONDS)))
        awake = (time.monotonic() - began) / 2
        yield "effect", percent(found)
        yield "awake_cpu_percent", round(100 * (cpu(agent) - before) / awake, 2)
        step = statistics.median(one.clock for each in found for one in each.stopped)
        yield "step_ms", round(1e3 * step, 3)
        yield "look", LOOK
        yield "scale", EVERY / SHIPPED
        yield "budget_percent", BUDGET


def _count(seconds: float) -> int:
    return max(3, int(seconds / (4 * BLOCK)))


def _steps(agent: RunningAgent) -> bool:
    snap = agent.snapshot()
    return bool(snap and any(one.step for one in snap.runs))


def percent(found: list[Quadruple]) -> dict[str, Any]:
    """Percent by which a step is longer: the trimmed mean and its 95 % interval."""
    middle, low, high = interval([clock(one) for one in found])
    return {
        "percent": round(middle, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "quadruples": len(found),
        "block_seconds": BLOCK,
    }
