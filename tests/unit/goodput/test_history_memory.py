"""What the histories of runs that are over cost the agent's memory: little each, and never more than a number of them."""

import gc
import random
import tracemalloc
from collections.abc import Iterator

import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook
from mldebug.status.snapshot import Snapshot
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.scalar_monitor import GONE, MOST_OVER, ScalarMonitor
from shared.goodput.memory_store import MemoryStore

RECORDS, LOOKS = 360, 6
EACH = 24 * 1024  # bytes of one history, of which 15 KiB are what is stored of it


class Node:
    """A node on which short runs come, train and go."""

    def __init__(self) -> None:
        self.now, self.lives, self.draw = 100.0, 0, random.Random(1)
        self.monitor = ScalarMonitor(MemoryStore(), lambda: 1.7e9 + self.now, lambda: self.now)

    def tick(self, *runs: Run) -> None:
        self.monitor.tick({run.job.id: run for run in runs}, enabled=True, age=1e6)
        self.monitor.show(Snapshot(node="n", at=self.now, started_at=0))

    def live(self) -> None:
        """One run from its first record to its end."""
        self.lives += 1
        name, ranks = f"train{self.lives}.py", (RankIdentity(rank=0, pid=7, world_size=1),)
        job = Job(id=f"run{self.lives}", name=name, launcher="torchrun", uid=1, ranks=ranks)
        run = Run(job, StallWatch(StallSettings()))
        for look in range(LOOKS):
            self.now += 5.0
            first = look * RECORDS // LOOKS
            points = tuple(
                LogRecord(step=1000 + first + n, loss=self.draw.random(), format="generic")
                for n in range(RECORDS // LOOKS)
            )
            at = RunLook(at=self.now, run=job.id, started=True)
            run.update(JobLook(job=job, look=at, step=points[-1].step, loss=points[-1].loss, points=points))  # fmt: skip
            self.tick(run)

    def used(self) -> int:
        """Bytes, when no run is there any more."""
        for _ in range(2):
            self.now += GONE + 10.0
            self.tick()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def node() -> Iterator[Node]:
    tracemalloc.start()
    yield Node()
    tracemalloc.stop()


def test_runs_that_are_over_cost_little_and_are_bounded(node: Node) -> None:
    before = node.used()
    for _ in range(MOST_OVER):
        node.live()
    full = node.used()
    assert (full - before) / MOST_OVER < EACH
    for _ in range(MOST_OVER):
        node.live()
    assert node.used() < full + MOST_OVER * 1024
