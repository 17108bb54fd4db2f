"""What the history of training figures and its rules cost the agent's main loop: with and without, in turns, in one process.

    python -m bench.histories

A run logs a step a second with four figures, and is looked at every 5 s. CPU time of the thread, so that other work on the machine makes no
difference; each turn is half a minute of looks.
"""

import random
import time
from statistics import fmean, stdev

from bench.table import Row, show
from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook
from mldebug.status.snapshot import Snapshot
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.scalar_monitor import ScalarMonitor
from shared.goodput.memory_store import MemoryStore

EVERY, LOOKS = 5.0, 6  # seconds between two looks; looks of one turn
DAY = 17_280  # looks
PAIRS = 200
BUDGET = 0.02  # percent of one core for each run


class Side:
    """One of the two: a monitor that keeps histories, or one that is switched off."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled, self.now = enabled, 1000.0
        self.monitor = ScalarMonitor(MemoryStore(), lambda: 1.7e9 + self.now, lambda: self.now)
        ranks = (RankIdentity(rank=0, pid=7, world_size=1, script="train.py"),)
        self.job = Job(id="run", name="train.py", launcher="torchrun", ranks=ranks)
        self.run = Run(self.job, StallWatch(StallSettings()))
        self.step, self._draw = 0, random.Random(1)

    def look(self) -> float:
        """Take one look; return the CPU seconds that the monitor has used."""
        points = tuple(self._record() for _ in range(int(EVERY)))
        self.now += EVERY
        last = points[-1]
        look = JobLook(
            job=self.job, look=RunLook(at=self.now, run="run", started=True), step=last.step, loss=last.loss,
            scalars=last.scalars, points=points, step_format="plain",
        )  # fmt: skip
        self.run.update(look)
        begun = time.thread_time()
        self.monitor.tick({"run": self.run}, enabled=self.enabled, age=1e6)
        self.monitor.show(Snapshot(node="n", at=self.now, started_at=0))
        return time.thread_time() - begun

    def _record(self) -> LogRecord:
        self.step += 1
        figures = {"learning_rate": 1e-4, "grad_norm": self._draw.random(), "tokens_per_second": self._draw.gauss(1e4, 100)}  # fmt: skip
        loss = 2 + self._draw.gauss(0, 0.02)
        return LogRecord(step=self.step, loss=loss, scalars=figures, format="plain")


def main() -> None:
    """Measure pairs of turns after a day of looks, and show the difference with its 95 % interval."""
    sides = [Side(enabled=enabled) for enabled in (True, False)]
    for side in sides:
        for _ in range(DAY):
            side.look()
    pairs = [[sum(side.look() for _ in range(LOOKS)) for side in sides] for _ in range(PAIRS)]
    more = [100 * (own - other) / (LOOKS * EVERY) for own, other in pairs]
    middle, wide = fmean(more), 1.96 * stdev(more) / PAIRS**0.5
    result = f"{middle:.4f} % of one core ({middle - wide:.4f} … {middle + wide:.4f})"
    row = Row("one run, a day old", result, f"{BUDGET:g} %", middle + wide <= BUDGET)
    show("history of training figures: more CPU with it than without", [row])


if __name__ == "__main__":
    main()
