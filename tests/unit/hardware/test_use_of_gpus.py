"""Who computes on the GPU of a rank beside it, and since when: as the driver counts it, and where it does not tell."""

from collections.abc import Collection, Iterable
from unittest.mock import Mock

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.straggler import SampledStretch
from mldebug.hardware.gpu.rank_join import RankProcess
from mldebug.hardware.gpu.readings import GpuProcess, GpuReading, NodeGpus
from mldebug.hardware.health.thresholds import Thresholds
from mldebug_agents.hardware.gpu.monitor import GpuMonitor
from mldebug_agents.hardware.gpu.neighbours import GpuNeighbour, UseOfGpus, users
from mldebug_agents.hardware.gpu.rank_evidence import with_gpu
from mldebug_agents.hardware.gpu.reads import GpuOrder, GpuReads
from mldebug_agents.hardware.monitor import HardwareMonitor

GIB = 1 << 30
RANK, OTHER, WORKER = 101, 900, 102
JOB = Job(
    id="job",
    name="train.py",
    launcher="torchrun",
    world_size=2,
    ranks=tuple(RankIdentity(rank=n, world_size=2, pid=100 + n, local_rank=n) for n in (0, 1)),
)


def gpu(*processes: tuple[int, bool | None], number: int = 1, **more: object) -> GpuReading:
    some = tuple(GpuProcess(pid=pid, memory_bytes=GIB, active=active) for pid, active in processes)
    reading = GpuReading(uuid=f"GPU-{number}", index=number, processes=some)
    return msgspec.structs.replace(reading, **more)


ALONE = gpu((RANK, None))
COMPUTING = gpu((RANK, True), (OTHER, True))
HOLDING = gpu((RANK, True), (OTHER, False))
NOT_KNOWN = gpu((RANK, None), (OTHER, None))


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (ALONE, {RANK}),
        (COMPUTING, {RANK, OTHER}),
        (HOLDING, {RANK}),
        (NOT_KNOWN, None),
        (gpu(), set()),
        (GpuReading(uuid="GPU-1", index=1), None),
        (msgspec.structs.replace(COMPUTING, mig_mode=True), None),  # instances have parts of their own
        (msgspec.structs.replace(COMPUTING, mig_instances=("MIG-1",)), None),
    ],
)  # fmt: skip
def test_who_computes_on_a_gpu(reading: GpuReading, expected: set[int] | None) -> None:
    assert users(reading) == expected


@pytest.mark.parametrize(
    ("readings", "since"),
    [
        ((ALONE, COMPUTING, COMPUTING), 20.0),
        ((HOLDING, COMPUTING), 20.0),  # it had a context there, and rested
        ((ALONE, NOT_KNOWN, COMPUTING), 30.0),
        ((ALONE, COMPUTING, HOLDING, COMPUTING), 20.0),  # it rests for a while
        ((ALONE, COMPUTING, NOT_KNOWN, COMPUTING), 20.0),
        ((ALONE, COMPUTING, ALONE, COMPUTING), 40.0),  # it has ended, and another has its number
        ((COMPUTING, COMPUTING), 0.0),  # it was there before us
        ((NOT_KNOWN, COMPUTING), 0.0),  # nobody knows whether it was
    ],
)
def test_since_when_another_program_computes(
    readings: tuple[GpuReading, ...], since: float
) -> None:
    use = UseOfGpus()
    for turn, reading in enumerate(readings, 1):
        use.update([reading], 10.0 * turn)
    found = use.neighbours(readings[-1:], {OTHER})
    assert found == {"GPU-1": GpuNeighbour(pid=OTHER, since=since)}


def test_processes_of_the_job_and_those_that_rest_are_no_neighbours() -> None:
    use = UseOfGpus()
    with_worker = gpu((RANK, True), (WORKER, True))  # a DataLoader's worker that has a context
    for reading in (ALONE, with_worker, HOLDING):
        use.update([reading], 1.0)
        assert use.neighbours([reading], {OTHER}) == {"GPU-1": None}
    assert use.neighbours([NOT_KNOWN], {OTHER}) == {}


def test_of_several_the_one_with_most_memory_is_named() -> None:
    small = GpuProcess(pid=800, memory_bytes=GIB // 2, active=True)
    both = msgspec.structs.replace(COMPUTING, processes=(small, *(COMPUTING.processes or ())))
    found = UseOfGpus().neighbours([both], {800, OTHER})["GPU-1"]
    assert found is not None
    assert found.pid == OTHER


class Holding:
    """Both ranks have both GPUs open; every other process is a stranger, called `mine`."""

    def look(self, ranks: Iterable[RankIdentity]) -> tuple[RankProcess, ...]:
        return tuple(RankProcess(rank=one.rank, pid=one.pid, local_rank=one.local_rank, open_minors=(0, 1)) for one in ranks)  # fmt: skip

    def strangers(
        self, listed: Iterable[int], ranks: Collection[int], others: Collection[int] = ()
    ) -> frozenset[int]:
        return frozenset(listed)

    def program(self, pid: int) -> str:
        return f"mine (pid {pid})"


def test_a_sample_of_a_rank_says_who_computes_on_its_gpu() -> None:
    first = gpu((100, None), number=0)
    nodes = [NodeGpus(at=10.0 * n, gpus=(first, one)) for n, one in enumerate((ALONE, COMPUTING, NOT_KNOWN), 1)]  # fmt: skip
    source = Mock(full=Mock(side_effect=nodes))
    reads = GpuReads(source, Holding())  # type: ignore[arg-type]
    memory = Mock(memo=Mock(return_value=b""))
    monitor = HardwareMonitor("n1", memory, {}, kernel_pids=True)
    monitor._gpus = GpuMonitor(memory, "n1")
    ranks = tuple(RankShares(rank=n, samples=100, waiting=1.0) for n in (0, 1))
    stretch = SampledStretch(at=30.0, seconds=5.0, ranks=ranks)
    found = []
    for _ in nodes:
        monitor._gpus.update(reads(GpuOrder({"job": JOB.ranks})), Thresholds(), None)
        shares = monitor.complete_samples(JOB, stretch).ranks
        found.append([(one.evidence.gpu_neighbour, one.evidence.gpu_neighbour_since) for one in shares])  # fmt: skip
    assert found == [
        [("", 0.0), ("", 0.0)],
        [("", 0.0), (f"mine (pid {OTHER})", 20.0)],
        [("", 0.0), (None, 0.0)],
    ]


def test_where_the_driver_counts_in_another_pid_namespace_nothing_is_known() -> None:
    shares = RankShares(rank=1, samples=100, waiting=1.0)
    beside = {"GPU-1": GpuNeighbour(pid=OTHER, since=5.0, name="x (pid 900)")}
    assert with_gpu(shares, COMPUTING, RANK, beside).evidence.gpu_neighbour == "x (pid 900)"
    assert with_gpu(shares, COMPUTING, RANK + 1, beside).evidence.gpu_neighbour is None
    assert with_gpu(shares, ALONE, RANK).evidence.gpu_neighbour is None
