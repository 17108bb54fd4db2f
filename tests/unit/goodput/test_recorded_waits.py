"""Who comes last to collectives, by the durations in the ranks' Flight Recorders."""

from collections.abc import Sequence
from unittest.mock import Mock

import msgspec
import pytest

from mldebug.core.model import (
    FlightGroup,
    FlightRecord,
    Job,
    PairCount,
    RankIdentity,
)
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.recorded_waits import (
    condensed,
    find_late_ranks,
    needs_more_records,
    recorded_waits,
    waits_of_nodes,
    with_recorded,
)
from mldebug.goodput.sample_rows import SampleRows
from mldebug.goodput.sentences import slow_words
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.goodput.speed_trend import SlowerSteps
from mldebug.goodput.straggler import SampledStretch, find_slow_ranks
from mldebug_agents.watch.wait_sampler import SampleOrder, WaitSampler
from shared.goodput.recordings import on_gpus, records


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

    def taken(self, shares: tuple[RankShares, ...], call: str = "") -> SampledStretch:
        taken = msgspec.structs.replace(on_gpus(), ranks=shares)
        return self._with_records(SampleOrder(job_of(4), call=call), taken)


def waits_in(taken: SampledStretch) -> list[float | None]:
    return [one.recorded for one in taken.ranks]


def test_ranks_are_asked_only_where_the_stacks_of_all_show_nothing() -> None:
    sampler, alike = Sampler(records({1: 0.05})), on_gpus().ranks
    assert waits_in(sampler.taken(alike))[1] == pytest.approx(0.0, abs=0.001)
    works = (msgspec.structs.replace(alike[0], on_gpu=0.1), *alike[1:])
    assert waits_in(sampler.taken(works)) == [None] * 4
    assert waits_in(sampler.taken(alike[:3])) == [None] * 3
    assert sampler.requests == 1


def test_of_a_run_over_several_nodes_they_are_kept_for_the_coordinator() -> None:
    sampler = Sampler(records({1: 0.05}))
    taken = sampler.taken(on_gpus().ranks, call="a")
    assert waits_in(taken) == [None] * 4
    assert sorted(taken.timed) == [0, 1, 2, 3]


@pytest.mark.parametrize("call", ["", "a"])
def test_ranks_that_have_timed_nothing_are_not_asked_again(call: str) -> None:
    sampler = Sampler({rank: FlightRecord() for rank in range(4)})
    assert [sampler.taken(on_gpus().ranks, call).timed for _ in range(3)] == [{}, {}, {}]
    assert sampler.requests == 1


def test_the_rows_ask_for_more_and_for_a_second_row_before_anybody_is_named() -> None:
    rows = SampleRows()
    answers = [rows.add(one, known=False) for one in row([records({1: 0.05}, noise=0.01, seed=n) for n in range(6)])]  # fmt: skip
    assert answers[:5] == [None] * 5
    assert answers[5] is not None
    assert [one.rank for one in answers[5].ranks] == [1]


def shifted(record: FlightRecord, first: int, seconds: float) -> FlightRecord:
    """The same recorder, asked later: without its first calls, and by another clock."""
    (timed,) = record.timed
    calls = tuple(
        msgspec.structs.replace(one, created_at=one.created_at + seconds)
        for one in timed.calls[first:]
    )
    return FlightRecord(timed=(msgspec.structs.replace(timed, calls=calls),))


def on_two_nodes(full: dict[int, FlightRecord], later: int) -> dict[int, FlightRecord]:
    """Ranks 2 and 3 stand on a node whose clock is an hour ahead, and that asks them so many calls later."""
    return {rank: shifted(one, later, 3600.0) if rank >= 2 else one for rank, one in full.items()}


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize("later", [0, 5, 30])
def test_the_same_calls_are_compared_on_all_nodes_whenever_each_was_asked(slow: int, later: int) -> None:  # fmt: skip
    full = on_two_nodes(records({slow: 0.05}, calls=64, noise=0.05), later)
    whole = recorded_waits(full, 4)
    waits = waits_of_nodes({rank: condensed(one) for rank, one in full.items()}, 4)
    assert min(waits, key=lambda rank: waits[rank]) == slow
    assert waits == {rank: pytest.approx(share, abs=0.04) for rank, share in whole.items()}


def test_nodes_that_have_no_block_of_calls_in_common_are_not_compared() -> None:
    full = on_two_nodes(records({1: 0.05}, calls=64), 52)
    assert recorded_waits(full, 4) != {}
    assert waits_of_nodes({rank: condensed(one) for rank, one in full.items()}, 4) == {}


def test_a_rank_that_has_not_timed_all_that_it_uses_sends_nothing() -> None:
    full = records({1: 0.05})
    group = FlightGroup(name="tp", backend="nccl", members="0-1", enqueued=9, completed=9)
    assert condensed(msgspec.structs.replace(full[0], groups=(group,))) == ()
    timed = {rank: condensed(one) for rank, one in full.items()}
    assert waits_of_nodes(timed, 4) != {}
    assert waits_of_nodes({**timed, 0: ()}, 4) == {}


def test_what_travels_is_small() -> None:
    (group,) = condensed(records({1: 0.05}, calls=64)[0])
    assert len(group.calls) == 7
    assert len(msgspec.json.encode(group)) < 600
