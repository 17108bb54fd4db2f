"""How many samples `mldebug slow` takes, and that it names a rank by all that the agent would name it by."""

from collections.abc import Iterator

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.recorded_waits import recorded_waits, with_recorded
from mldebug.goodput.straggler import STRETCHES, SampledStretch
from mldebug_agents.cli.commands.goodput.slow import judged
from mldebug_agents.watch.wait_sampler import SampleOrder, WaitSampler
from shared.goodput.recordings import on_gpus, records
from shared.goodput.simulated import noisy, slower, stretch


class Sampler(WaitSampler):
    """A sampler that gives these stretches, one after the other."""

    def __init__(self, some: Iterator[SampledStretch]) -> None:
        self.some = some
        self.taken = 0

    def take(self, order: SampleOrder) -> SampledStretch:
        self.taken += 1
        return msgspec.structs.replace(next(self.some), world_size=order.job.world_size)


def job_of(ranks: int) -> Job:
    some = tuple(RankIdentity(rank=n, world_size=ranks, pid=9 + n, node="a1") for n in range(ranks))
    return Job(id="j", name="train.py", launcher="torchrun", world_size=ranks, ranks=some)


def test_a_slow_rank_is_named_by_two_rows_and_nobody_by_one() -> None:
    own = noisy(0.3)
    slow = Sampler(stretch(n, 4, slower(own, [2], 1.4)) for n in range(99))
    assert [one.rank for one in judged(job_of(4), slow).found.ranks] == [2]
    assert slow.taken == 2 * STRETCHES
    healthy = Sampler(stretch(n, 4, own) for n in range(99))
    answer = judged(job_of(4), healthy)
    assert (answer.found.ranks, healthy.taken) == ((), STRETCHES)
    assert answer.sentence == "nobody slows the others down: no rank stands apart from the others"


@pytest.mark.parametrize("late", [0.0, 0.05])
def test_what_the_flight_recorders_show_counts_as_for_the_agent(late: float) -> None:
    """It once looked at the stacks alone, which are alike where all hosts wait for their GPUs."""
    sampler = Sampler(
        with_recorded(on_gpus(), recorded_waits(records({1: late}, noise=0.01, seed=n), 4))
        for n in range(99)
    )
    assert [one.rank for one in judged(job_of(4), sampler).found.ranks] == ([1] if late else [])


def test_ranks_on_other_nodes_and_a_single_rank_are_sampled_once() -> None:
    """More samples would not tell who is slow."""
    for ranks, world in ((4, 8), (1, 1)):
        sampler = Sampler(stretch(n, ranks, noisy(0.3)) for n in range(99))
        job = msgspec.structs.replace(job_of(ranks), world_size=world)
        assert judged(job, sampler).found.ranks == ()
        assert sampler.taken == 1
