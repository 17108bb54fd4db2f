"""One look by a command: the agent's word where it has one, else an own read, and never longer than allowed."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from fakenvml.library import FakeNvml
from mldebug.config.schema import Config
from mldebug.core.model import GpuSample, Job, RankDevice, RankIdentity
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch
from mldebug.status.gpu_view import of_agent
from mldebug.status.snapshot import RunState, Snapshot, SourceState
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.hardware.gpu.reader import VendorReader
from mldebug_agents.hardware.gpu.vendors import nvidia
from mldebug_agents.hardware.one_shot import OneShotReader
from mldebug_agents.jobs.ranks.discovery import Discovery
from shared.system.patience import PATIENCE

PUBLISHED = Snapshot(node="n1", at=1000.0, started_at=0.0)
LOOKED = msgspec.structs.replace(PUBLISHED, gpus=NodeGpus(at=990.0), gpu_watch=NodeWatch(at=999.0))
NOBODY = Discovery()
HANGING = Discovery(
    jobs=(
        Job(
            id="1a2b", name="train.py", launcher="torchrun", world_size=2,
            ranks=tuple(RankIdentity(rank=rank, world_size=2, pid=620 + rank) for rank in (0, 1)),
        ),
    )
)  # fmt: skip
DEVICE = RankDevice(rank=0, uuid="GPU-0", index=0, samples=(GpuSample(at=999.0, busy_ratio=1.0),))


class Bench:
    """Real tools whose GPU library is the fake."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeNvml(folder)
        self.fake.count_calls()
        self._open = ExitStack()
        tools = self._open.enter_context(open_tools(Config()))
        self.context = tools.context
        options = nvidia.Options(library=self.fake.library)
        self.gpus = VendorReader(tools.context.spawner, tools.context.host, options=options)
        self._open.callback(self.gpus.close)

    def close(self) -> None:
        """The reader's child and the helper end."""
        self._open.close()


@pytest.fixture
def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.table"))
    made = Bench(tmp_path)
    yield made
    made.fake.release()
    made.close()


def test_without_an_agent_it_reads_by_itself(it: Bench) -> None:
    taken = OneShotReader(it.context, it.gpus, NOBODY, 20.0).take()
    assert not taken.by_agent
    assert taken.gpus is not None
    assert taken.watch is not None
    assert len(taken.gpus.gpus) == len(taken.watch.gpus) == 2
    assert {one.component for one in taken.health} >= {"gpu_ecc", "gpu_xid", "kernel"}


def test_two_reads_tell_what_one_does_not(it: Bench) -> None:
    twice = OneShotReader(it.context, it.gpus, NOBODY, 20.0, between=0.3).take()
    once = OneShotReader(it.context, it.gpus, NOBODY, 20.0).take()
    assert "over time" in " ".join(one.reason for one in once.health)
    assert "over time" not in " ".join(one.reason for one in twice.health)


def test_an_agent_that_has_looked_is_believed_and_the_gpus_are_left_alone(it: Bench) -> None:
    taken = OneShotReader(it.context, it.gpus, NOBODY, 20.0, lambda: LOOKED).take()
    assert taken.by_agent
    assert it.fake.calls() == []


def test_one_that_looked_long_ago_is_not(it: Bench) -> None:
    old = msgspec.structs.replace(LOOKED, at=1060.0)
    taken = OneShotReader(it.context, it.gpus, NOBODY, 20.0, lambda: old).take()
    assert not taken.by_agent
    assert taken.gpus is not None
    assert len(taken.gpus.gpus) == 2


@pytest.mark.parametrize("alone", [False, True])
def test_released_gpus_are_not_touched(it: Bench, alone: bool) -> None:
    released = msgspec.structs.replace(PUBLISHED, gpus_released_until=2000.0)
    taken = OneShotReader(it.context, it.gpus, NOBODY, 20.0, lambda: released, alone=alone).take()
    assert taken.released_until == 2000.0
    assert it.fake.calls() == []


@pytest.mark.parametrize("alone", [False, True])
def test_nobody_goes_after_a_reader_that_hangs_in_the_driver(it: Bench, alone: bool) -> None:
    failed = SourceState(name="gpus", success=False, error="GpuBlockedError: it has not answered")
    hanging = msgspec.structs.replace(PUBLISHED, sources=(failed,))
    taken = OneShotReader(it.context, it.gpus, NOBODY, 20.0, lambda: hanging, alone=alone).take()
    assert taken.gpu_gap is not None
    assert taken.gpu_gap.reason == "it has not answered"
    assert it.fake.calls() == []


def test_an_agent_that_does_not_answer_costs_half_the_time_and_no_evidence(it: Bench) -> None:
    over = threading.Event()

    def silent() -> None:
        over.wait(60)

    began = time.monotonic()
    taken = OneShotReader(it.context, it.gpus, NOBODY, 6.0, silent).take()
    took = time.monotonic() - began
    over.set()
    assert took < 9 * PATIENCE
    assert taken.watch is not None
    assert taken.gpu_gap is None


def test_what_came_before_the_driver_hung_is_kept(it: Bench) -> None:
    it.fake.block("nvmlDeviceGetEnforcedPowerLimit")  # only the full read calls it
    began = time.monotonic()
    taken = OneShotReader(it.context, it.gpus, NOBODY, 3.0).take()
    assert time.monotonic() - began < 6 * PATIENCE
    assert taken.watch is not None
    assert len(taken.watch.gpus) == 2
    assert taken.gpus is None
    assert taken.gpu_gap is not None
    assert "within 3 s" in taken.gpu_gap.reason


def test_two_looks_tell_what_the_gpus_of_a_job_do(it: Bench, tmp_path: Path) -> None:
    """In figures, by the processes that the driver counts; whoever wants them at once does not wait for the second."""
    it.fake.play("hang-sleep")
    began = time.monotonic()
    taken = OneShotReader(it.context, it.gpus, HANGING, 60.0, again=50.0).take()
    assert time.monotonic() - began < 45.0 * PATIENCE
    first, second = taken.states["1a2b"]
    assert [len(one.samples) for one in (first, second)] == [2, 2]
    assert [one.samples[-1].busy_ratio for one in (first, second)] == [1.0, 0.0]
    assert [one.pids for one in (first, second)] == [(620,), (621,)]
    assert all(one.sure and not one.sliced and not one.others for one in (first, second))


def test_one_look_has_no_second(it: Bench) -> None:
    it.fake.play("hang-sleep")
    (result,) = OneShotReader(it.context, it.gpus, HANGING, 60.0).take().states.values()
    assert [len(one.samples) for one in result] == [1, 1]


def test_what_an_agent_has_seen_counts_where_it_has_looked_lately() -> None:
    run = RunState(id="1a2b", name="train.py", launcher="torchrun", gpu_states=(DEVICE,))
    changed = msgspec.structs.replace(LOOKED, runs=(run,))
    assert of_agent(changed).states == {"1a2b": (DEVICE,)}
    old = msgspec.structs.replace(changed, at=changed.at + 60.0)
    assert of_agent(old).states == {}
