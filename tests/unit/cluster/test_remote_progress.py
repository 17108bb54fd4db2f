"""Progress that another node has seen: in a large cluster it comes late, and late is not quiet."""

import random
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from mldebug.cluster.coordinator import Coordinator
from mldebug.cluster.messages import Announcement, RunNews, Signal
from mldebug.core.model import Job, Role
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import (
    Progress,
    ProgressKind,
    RankLook,
    RunLook,
    Stage,
    StallDecision,
)
from mldebug_agents.cluster.peers.own_runs import RemoteProgress
from mldebug_agents.watch.job_watch import JobLook

KEY = ("env", "", "n1:29500")
STEP = 0.3  # seconds


def announced(node: str, *signals: Signal) -> Announcement:
    news = RunNews(key=KEY, world_size=8192, ranks="0-7", signals=signals)
    return Announcement(node=node, agent=node, port=1, runs=(news,))


def rank(number: int, at: float, chance: random.Random) -> RankLook:
    """One of a healthy job on a GPU: seen in the same line in ten of twelve looks."""
    waits = chance.random() < 10 / 12
    return RankLook(
        rank=number, role=Role.WAITING if waits else Role.BUSY, class_name="sync" if waits else "",
        frames_signature="item" if waits else chance.choice("xyz"), cpu_ratio=0.93,
        process_cpu_ratio=1.2, switches=int(at * 50) + number, device_progress=True,
    )  # fmt: skip


class Two:
    """Among `nodes`: one writes the log, the other one judges by it; both announce themselves as seldom as they may."""

    def __init__(self, nodes: int) -> None:
        self.by, self.far, self.watch = Coordinator(), RemoteProgress(), StallWatch(StallSettings())
        for number in range(nodes):
            self.by.update(announced(f"n{number}"), f"10.0.0.{number}", 0.0)
        self.pace = max(2.0, self.by.pace)
        self._chance = random.Random(1)

    def live(self, seconds: int, stops: float = 1e9) -> Iterator[tuple[float, StallDecision]]:
        """Second by second; the worst phase: what was told waits for almost a whole pace."""
        writes, hears = 0.0, self.pace - 1
        for now in map(float, range(seconds)):
            if now >= writes:
                at = min(now, stops) // STEP * STEP
                step = Signal(kind="step", value=at / STEP, age=now - at)
                self.by.update(announced("n0", step), "10.0.0.0", now)
                writes = now + self.pace
            if now >= hears:
                self.by.update(announced("n1"), "10.0.0.1", now)
                word = self.by.word(announced("n1").runs[0], "n1", now)
                self.far.take(word.signals, now)
                hears = now + self.pace
            yield now, self.watch.look(self._look(now))

    def _look(self, now: float) -> RunLook:
        ranks = tuple(rank(number, now, self._chance) for number in range(8))
        look = RunLook(at=now, run="r", ranks=ranks, elsewhere=True, started=True)
        job = Job(id="r", name="r", ranks=(), world_size=8192, launcher="torchrun")
        return self.far.complete(JobLook(job=job, look=look)).look


@pytest.mark.parametrize("nodes", [3, 600, 1024])
def test_a_healthy_job_is_not_suspected_in_a_large_cluster(nodes: int) -> None:
    stages, samples, captures = Counter[Stage](), 0, 0
    for _, value in Two(nodes).live(600):
        stages[value.stage] += 1
        samples, captures = samples + value.sample, captures + value.capture
    assert set(stages) <= {Stage.WATCHING, Stage.QUIET}, stages
    assert samples <= 1  # the glance at a job of which nothing is told yet
    assert captures == 0


@pytest.mark.parametrize("nodes", [3, 1024])
def test_a_stall_is_suspected_all_the_same(nodes: int) -> None:
    two = Two(nodes)
    suspected = [at for at, value in two.live(560, stops=400.0) if value.stage is Stage.SUSPECT]
    assert suspected
    assert 400 < suspected[0] < 400 + 40 + 2 * two.pace


def test_what_was_told_late_is_known_up_to_then() -> None:
    far = RemoteProgress()
    far.take((Signal(kind="step", value=7.0, age=31.0, stale=30.0),), 100.0)
    (step,) = far.all(110.0)
    assert (step.age, step.stale) == (41.0, 40.0)
    far.take((Signal(kind="step", value=7.0, age=45.0, stale=4.0),), 114.0)  # nothing since
    (step,) = far.all(114.0)
    assert (step.age, step.stale) == (45.0, 4.0)


def test_what_is_seen_here_counts_to_the_end() -> None:
    """One signal of this node is enough to know that nothing comes."""
    here = Progress(kind=ProgressKind.STEP, value=1.0, at=0.0)
    there = Progress(kind=ProgressKind.RECORD, value=1.0, at=0.0, until=1.0)
    watch = StallWatch(StallSettings())
    look = RunLook(at=0.0, run="r", ranks=(RankLook(rank=0),), progress=(here, there))
    watch.look(look)
    for at in range(1, 60):
        later = msgspec.structs.replace(look, at=float(at), started=True)
        reading = watch.look(later)
    assert reading.quiet > 50
