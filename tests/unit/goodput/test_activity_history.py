"""What the agent keeps of a run beside the figures of its log: silence, use of its GPUs, waits; also while it stands still, and over restarts."""

from typing import Any

import pytest
from msgspec.structs import replace

from mldebug.core.model import GpuSample, HookState, Job, RankDevice, RankIdentity, Role
from mldebug.goodput.scalars.history import MOST_ROWS, RunHistory
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.run_activity import activity_of
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.scalar_monitor import ScalarMonitor
from shared.goodput.memory_store import MemoryStore

BEGAN = 1_795_240_000.0
STATE = RunState(id="run1", name="train.py", launcher="torchrun", timeout_seconds=30.0)


def gpu(rank: int, busy: float | None, *, sliced: bool = False) -> RankDevice:
    sample = GpuSample(at=BEGAN, busy_ratio=busy)
    return RankDevice(rank=rank, uuid=f"GPU-{rank}", index=rank, sliced=sliced, samples=(sample,))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quiet_seconds": 12.5}, {"silence_seconds": 12.5}),
        ({"timeout_seconds": 0.0, "quiet_seconds": 12.5}, {}),
        ({"gpu_states": (gpu(0, 1.0), gpu(1, 0.5))}, {"silence_seconds": 0.0, "gpu_busy_percent": 75.0}),
        ({"gpu_states": (gpu(0, None), gpu(1, 17.0), gpu(2, float("nan")))}, {"silence_seconds": 0.0}),
        ({"gpu_states": (gpu(0, 1.0, sliced=True),)}, {"silence_seconds": 0.0}),
        ({"roles": {0: Role.WAITING, 1: Role.INERT, 2: Role.WAITING, 3: Role.WAITING}}, {"silence_seconds": 0.0, "waiting_percent": 75.0}),
        ({"hooks": {0: HookState(phase="data_wait"), 1: HookState()}}, {"silence_seconds": 0.0, "waiting_percent": 50.0}),
        ({"hooks": {0: HookState(phase="evaluate"), 1: HookState()}}, {"silence_seconds": 0.0, "waiting_percent": 0.0}),
    ],
)  # fmt: skip
def test_what_is_known_of_a_run_at_one_moment(
    changes: dict[str, Any], expected: dict[str, float]
) -> None:
    assert activity_of(replace(STATE, **changes)) == expected


class Node:
    """An agent that looks at one run every 5 s, whose clock is turned by hand."""

    def __init__(self) -> None:
        self.now, self.store = 100.0, MemoryStore()
        job = Job(id="run1", name="train.py", launcher="torchrun", uid=1000, ranks=(RankIdentity(rank=0, pid=7, world_size=1, script="train.py"),))  # fmt: skip
        self.run: Run | None = Run(job, StallWatch(StallSettings()))
        self.begin_agent()

    def begin_agent(self) -> None:
        self.monitor = ScalarMonitor(self.store, lambda: BEGAN + self.now, lambda: self.now)

    def look(self, step: int, quiet: float, loss: float | None = None) -> None:
        assert self.run is not None
        self.now += 5.0
        self.run.update(JobLook(job=self.run.job, look=RunLook(at=self.now, run="run1", started=True), step=step, loss=loss))  # fmt: skip
        self.show(replace(STATE, step=step, quiet_seconds=quiet))
        self.monitor.tick({"run1": self.run}, enabled=True, age=7 * 86_400.0)

    def leave(self, seconds: float) -> None:
        """The run is gone for so long."""
        for _ in range(int(seconds / 5)):
            self.now += 5.0
            self.monitor.tick({}, enabled=True, age=7 * 86_400.0)

    def show(self, *runs: RunState) -> Snapshot:
        return self.monitor.show(Snapshot(node="n", at=BEGAN + self.now, started_at=0, runs=runs))

    @property
    def history(self) -> RunHistory:
        (found,) = self.show().histories
        return found


def test_silence_is_kept_while_the_run_makes_no_step() -> None:
    node = Node()
    for step in range(20):
        node.look(step, 1.0, loss=2.0)
    for n in range(40):
        node.look(19, 5.0 * n)
    history = node.history
    assert len(history.times) == 10, "no row of the figures without a new step"
    assert len(history.activity_times) == 30, "one for each ten seconds"
    assert max(one or 0.0 for one in history.activity["silence_seconds"]) == 190.0


def test_a_run_without_any_figure_has_its_silence_kept() -> None:
    node = Node()
    for _ in range(8):
        node.look(0, 3.0)
    assert (node.history.times, set(node.history.activity)) == ((), {"silence_seconds"})
    assert node.history.span == (BEGAN + 105, BEGAN + 135)


def test_what_came_seconds_before_the_agent_ended_by_itself_is_there_afterwards() -> None:
    """The run ends, too, and is not found any more: nothing would store it again."""
    node = Node()
    for step in range(5):
        node.look(step, 1.0, loss=2.0)
    before = node.history
    node.monitor.end()
    node.begin_agent()
    node.leave(5)
    assert (node.history.times, node.history.columns) == (before.times, before.columns)


def test_an_agent_that_ends_before_it_has_read_what_is_stored_writes_nothing_over_it() -> None:
    node = Node()
    for step in range(5):
        node.look(step, 1.0, loss=2.0)
    node.monitor.end()
    stored = dict(node.store.values)
    node.begin_agent()
    node.monitor.end()
    assert node.store.values == stored


def test_it_is_bounded_and_survives_the_runs_end_and_the_agents() -> None:
    node = Node()
    for step in range(3000):
        node.look(step, 1.0 if step < 2990 else 60.0)
    assert len(node.history.activity_times) <= MOST_ROWS
    node.leave(120)
    before = node.history
    assert 0 < len(before.activity_times) <= 120
    assert before.activity["silence_seconds"][-1] == 60.0
    node.begin_agent()
    node.leave(10)
    assert node.history == before
