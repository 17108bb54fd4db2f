"""How long it takes from the end of the timeout until the stall is noticed, and until its report is on disk.

    python tests/bench/latency.py [FAULT ...]

Real jobs of two ranks, of which one gets stuck for good; the agent has the settings that are shipped, but for a timeout of
15 s. Each fault several times; the median counts. It counts from the moment in which the fault strikes, so the gap between
the last step and the strike is in it.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bench.alone import alone
from bench.table import Row, show
from processes.harness import Plan, RunningJob, running, wait_for
from processes.incidents.stuck import Clock
from processes.incidents.watching import Report, RunningAgent, settings, watching

FAULTS = ("sleep", "stopped", "fifo", "lock", "gil", "input")
ROUNDS = int(os.environ.get("MLDEBUG_BENCH_LATENCY_ROUNDS", "3"))
AT_ONCE = 2  # jobs at the same time: while one hangs, another starts
TIMEOUT = 15.0
STEPS = 40  # before the fault strikes
BUDGET = 5.0
PATIENCE = 90.0


class Latency(NamedTuple):
    """Seconds after the end of the timeout."""

    noticed: float
    reported: float
    right: bool  # the report names the rank


def measure(agent: RunningAgent, clock: Clock, fault: str) -> Latency:
    """One job."""
    stdin = "pipe" if fault == "input" else "null"
    with running(Plan(fault, world_size=2, struck=(1,), after=STEPS, stdin=stdin)) as job:
        job.wait_for_event("strike", (1,))
        due = time.time() + TIMEOUT
        report = wait_for(f"the report on {fault}", lambda: _report(agent, job), PATIENCE)
        wait_for("its time", lambda: report["id"] in clock.observed)
        detected = datetime.fromisoformat(report["detected_at"]).timestamp()
        culprits = [one["rank"] for one in report["diagnosis"]["culprits"]]
        return Latency(detected - due, clock.observed[report["id"]] - due, culprits == [1])


def _report(agent: RunningAgent, job: RunningJob) -> Report | None:
    return next(iter(agent.reports(job)), None)


def rows(found: dict[str, list[Latency]]) -> Iterator[Row]:
    """A row for each fault, and all together."""
    for fault, value in found.items():
        noticed = statistics.median(one.noticed for one in value)
        reported = sorted(one.reported for one in value)
        middle = statistics.median(reported)
        named = f"rank named in {sum(one.right for one in value)} of {len(value)}"
        text = f"{middle:.1f} s ({reported[0]:.1f} … {reported[-1]:.1f}; noticed {noticed:.1f})"
        yield Row(f"{fault}: timeout to report on disk; {named}", text, f"≤ {BUDGET:.0f} s", middle <= BUDGET)  # fmt: skip


def main() -> None:
    """Print the table."""
    faults = sys.argv[1:] or FAULTS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = settings(folder, stall=f"{{timeout: {TIMEOUT:.0f}s}}")
        with watching(folder, config) as agent, Clock(agent) as clock:
            orders = [fault for _ in range(ROUNDS) for fault in faults]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                done = list(pool.map(lambda fault: measure(agent, clock, fault), orders))
    found = {fault: [one for name, one in zip(orders, done, strict=True) if name == fault] for fault in faults}  # fmt: skip
    show(f"stall to report, timeout {TIMEOUT:.0f} s; median of {ROUNDS}", rows(found))


if __name__ == "__main__":
    alone()
    main()
