"""Who comes last to collectives, by the durations in the ranks' Flight Recorders."""

import random
from collections.abc import Mapping, Sequence
from unittest.mock import Mock

import msgspec
import pytest

from mldebug.core.model import (
    FlightGroup,
    FlightRecord,
    Job,
    PairCount,
    RankIdentity,
    TimedCall,
    TimedCalls,
)
from mldebug.core.ranksets import fold_ranks
from mldebug.goodput.evidence import RankEvidence
from mldebug.goodput.rank_shares import RankShares
from mldebug.goodput.recorded_waits import (
    find_late_ranks,
    needs_more_records,
    recorded_waits,
    with_recorded,
)
from mldebug.goodput.sample_rows import SampleRows
from mldebug.goodput.sentences import slow_words
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.goodput.speed_trend import SlowerSteps
from mldebug.goodput.straggler import SampledStretch, find_slow_ranks
from mldebug_agents.watch.wait_sampler import SampleOrder, WaitSampler

STEP = 0.1  # seconds of work of each rank before each of its collectives


def records(
    extra: dict[int, float],
    ranks: int = 4,
    calls: int = 40,
    noise: float = 0.0,
    members: str = "",
    uneven: float = 0.0,
    seed: int = 0,
) -> dict[int, FlightRecord]:
    """What the ranks have recorded of `calls` collectives to which each comes after its own work: `extra` seconds more for some; `noise`, and work
    that differs (`uneven`), are shares of it.
    """
    dice = random.Random(seed)
    taken: dict[int, list[TimedCall]] = {rank: [] for rank in range(ranks)}
    begun = 1000.0
    for number in range(1, calls + 1):
        came = {
            rank: begun + STEP * (1 + dice.gauss(0, noise) + dice.uniform(-uneven, uneven)) + extra.get(rank, 0.0)
            for rank in range(ranks)
        }  # fmt: skip
        ended = max(came.values()) + 0.005
        for rank, at in came.items():
            taken[rank].append(TimedCall(sequence=number, seconds=ended - at, created_at=at))
        begun = ended
    folded = members or fold_ranks(range(ranks))
    return {
        rank: FlightRecord(timed=(TimedCalls(group="0", backend="nccl", members=folded, calls=tuple(some)),))
        for rank, some in taken.items()
    }  # fmt: skip


def on_gpus(ranks: int = 4) -> SampledStretch:
    """All hosts wait for their GPUs alike: their stacks tell nothing."""
    shares = tuple(RankShares(rank=n, samples=100, waiting=0.95, on_gpu=0.95) for n in range(ranks))
    return SampledStretch(at=0.0, seconds=5.0, ranks=shares, world_size=ranks)


def row(some: Sequence[dict[int, FlightRecord]], ranks: int = 4) -> list[SampledStretch]:
    return [with_recorded(on_gpus(ranks), recorded_waits(one, ranks)) for one in some]


def job_of(ranks: int) -> Job:
    some = tuple(
        RankIdentity(rank=n, world_size=ranks, pid=100 + n, node="a1") for n in range(ranks)
    )
    return Job(id="j", name="train.py", launcher="torchrun", world_size=ranks, ranks=some)


def test_who_comes_last_waits_least() -> None:
    waits = recorded_waits(records({2: 0.05}), 4)
    assert waits[2] == pytest.approx(0.0, abs=0.001)
    assert all(waits[rank] == pytest.approx(0.05 / 0.155, abs=0.01) for rank in (0, 1, 3))


@pytest.mark.parametrize("late", [0.01, 0.02, 0.05])
def test_a_late_rank_is_named_though_all_hosts_only_wait_for_their_gpus(late: float) -> None:
    some = row([records({1: late}, noise=0.01, seed=n) for n in range(5)])
    assert not find_slow_ranks(some).ranks
    found = find_late_ranks(find_slow_ranks(some), some)
    assert [one.rank for one in found.ranks] == [1]
    assert found.loss == 0.0  # the GPUs of the others may compute while they wait in a collective
    assert slow_words(found, 4).startswith("rank 1 slows the run down: it comes last to collectives: ")  # fmt: skip
    with_steps = find_late_ranks(find_slow_ranks(some), some, SlowerSteps(0.0, 1.5))
    assert with_steps.loss == pytest.approx(1 / 3)
    assert "a step takes 1.5 times as long as it used to, 32 rank hours a day; it comes last" in slow_words(with_steps, 4)  # fmt: skip
    judged = judge_slowdown(job_of(4), found).diagnosis
    assert (judged.verdict, [one.rank for one in judged.culprits]) == ("straggler", [1])
    assert judged.confidence == "low"  # nothing says why: it may have more to do
    assert "Flight Recorders" in judged.evidence[0]


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_named_for_healthy_noise(seed: int) -> None:
    some = row([records({}, noise=0.05, seed=10 * seed + n) for n in range(5)])
    assert find_late_ranks(find_slow_ranks(some), some).ranks == ()


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_named_for_uneven_work(seed: int) -> None:
    """Each step another rank has more to do."""
    some = row([records({}, uneven=0.4, seed=10 * seed + n) for n in range(5)])
    assert find_late_ranks(find_slow_ranks(some), some).ranks == ()


def test_a_late_rank_that_has_more_work_is_not_to_blame() -> None:
    """As much more memory on its GPU shows."""
    some = []
    for stretch in row([records({1: 0.05}, seed=n) for n in range(5)]):
        ranks = tuple(
            msgspec.structs.replace(one, evidence=RankEvidence(gpu_memory=(60 if one.rank == 1 else 40) * 2**30))
            for one in stretch.ranks
        )  # fmt: skip
        some.append(msgspec.structs.replace(stretch, ranks=ranks))
    found = find_late_ranks(find_slow_ranks(some), some)
    assert [one.cause for one in found.ranks] == ["uneven"]
    judged = judge_slowdown(job_of(4), found).diagnosis
    assert (judged.verdict, judged.culprits) == ("unknown", ())


def test_half_of_the_ranks_are_the_job() -> None:
    some = row([records({0: 0.05, 1: 0.05}, seed=n) for n in range(5)])
    assert find_late_ranks(find_slow_ranks(some), some).ranks == ()


def test_where_only_some_have_their_timing_on_nothing_is_compared() -> None:
    full = records({1: 0.05})
    assert recorded_waits({1: full[1]}, 4) == {}
    assert recorded_waits({**full, 2: FlightRecord()}, 4) == {}
    assert recorded_waits({rank: full[rank] for rank in (0, 1, 2)}, 4) == {}


def test_calls_of_a_group_of_some_ranks_tell_nothing_of_all() -> None:
    assert recorded_waits(records({1: 0.05}, members="0-1"), 4) == {}
    assert recorded_waits(records({1: 0.05}, calls=7), 4) == {}


def test_who_comes_late_because_it_has_waited_in_another_group_is_not_to_blame() -> None:
    """Of four ranks, 1 is slow; 0 waits for it in their group of two, and so both come late to that of all."""
    both, pairs = records({0: 0.05, 1: 0.05}), (records({1: 0.05}, 2), records({}, 2))
    joined = {}
    for rank, record in both.items():
        (own,) = pairs[rank // 2][rank % 2].timed
        few = msgspec.structs.replace(own, group="tp", members="0-1" if rank < 2 else "2-3")
        joined[rank] = FlightRecord(timed=(*record.timed, few))
    waits = recorded_waits(joined, 4)
    assert waits[1] == pytest.approx(0.0, abs=0.001)
    assert all(waits[rank] > 0.25 for rank in (0, 2, 3)), waits


def test_a_group_that_is_not_timed_or_stages_that_send_to_each_other_tell_nothing() -> None:
    full = records({1: 0.05})
    group = FlightGroup(name="tp", backend="nccl", members="0-1", enqueued=9, completed=9)
    alone = msgspec.structs.replace(group, members="0")
    sends = PairCount(group="pp", members="0-1", done=3)

    def with_(**fields: object) -> dict[int, FlightRecord]:
        return {**full, 0: msgspec.structs.replace(full[0], **fields)}

    assert recorded_waits(with_(groups=(group,)), 4) == {}
    assert recorded_waits(with_(pairs=(sends,)), 4) == {}
    assert recorded_waits(with_(groups=(alone,)), 4) == recorded_waits(full, 4) != {}


def test_a_row_of_which_one_stretch_was_not_recorded_is_not_judged_by_records() -> None:
    some = row([records({1: 0.05}, seed=n) for n in range(4)])
    some[2] = on_gpus()
    assert find_late_ranks(find_slow_ranks(some), some).ranks == ()
    assert not needs_more_records(some)


def test_calls_that_not_every_rank_still_holds_are_left_out() -> None:
    full = records({1: 0.05}, calls=60)
    (timed,) = full[3].timed
    later = msgspec.structs.replace(timed, calls=timed.calls[20:])
    waits = recorded_waits({**full, 3: FlightRecord(timed=(later,))}, 4)
    assert waits[1] == pytest.approx(0.0, abs=0.001)
    assert waits[0] == pytest.approx(0.05 / 0.155, abs=0.01)


class Sampler(WaitSampler):
    """A sampler that counts how often ranks were asked for their Flight Recorders."""

    def __init__(self, answer: dict[int, FlightRecord]) -> None:
        self.requests = 0
        self.answer = answer
        tools = Mock()
        tools.timed_calls = self._ask
        super().__init__(tools)

    def _ask(self, ranks: Sequence[RankIdentity]) -> dict[int, FlightRecord]:
        self.requests += 1
        return self.answer

    def waits(self, shares: tuple[RankShares, ...], call: str = "") -> Mapping[int, float]:
        return self._recorded(SampleOrder(job_of(4), call=call), shares)


def test_ranks_are_asked_only_where_the_stacks_of_all_show_nothing() -> None:
    sampler, alike = Sampler(records({1: 0.05})), on_gpus().ranks
    assert sampler.waits(alike)[1] == pytest.approx(0.0, abs=0.001)
    works = (msgspec.structs.replace(alike[0], on_gpu=0.1), *alike[1:])
    assert (sampler.waits(works), sampler.waits(alike[:3]), sampler.waits(alike, call="other nodes, too")) == ({}, {}, {})  # fmt: skip
    assert sampler.requests == 1


def test_ranks_that_have_timed_nothing_are_not_asked_again() -> None:
    sampler = Sampler({rank: FlightRecord() for rank in range(4)})
    assert [sampler.waits(on_gpus().ranks) for _ in range(3)] == [{}, {}, {}]
    assert sampler.requests == 1


def test_the_rows_ask_for_more_and_for_a_second_row_before_anybody_is_named() -> None:
    rows = SampleRows()
    answers = [rows.add(one, known=False) for one in row([records({1: 0.05}, noise=0.01, seed=n) for n in range(6)])]  # fmt: skip
    assert answers[:5] == [None] * 5
    assert answers[5] is not None
    assert [one.rank for one in answers[5].ranks] == [1]
