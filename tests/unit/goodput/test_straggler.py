"""Who slows a run down, from simulated runs: steps that end together, ranks that take their time, and samples of them."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.sample_rows import CLOSELY, SampleRows
from mldebug.goodput.sentences import slow_words
from mldebug.goodput.straggler import (
    LONG,
    MOST,
    STRETCHES,
    Excess,
    SampledStretch,
    Slowness,
    SlowRank,
    agreed,
    candidates,
    find_slow_ranks,
    needs_more,
)
from shared.goodput.simulated import Own, noisy, slower, stretch


def judged(seed: int, ranks: int, own: Own, stretches: int = MOST) -> Slowness:
    return find_slow_ranks([stretch(1000 * seed + n, ranks, own) for n in range(stretches)])


def named(found: Slowness) -> list[int]:
    return [one.rank for one in found.ranks]


@pytest.mark.parametrize("base", [0.1, 0.3, 0.65, 1.5])
@pytest.mark.parametrize(("factor", "least"), [(1.5, 20), (1.2, 20), (1.12, 18)])
def test_one_slow_rank_of_eight_is_named(base: float, factor: float, least: int) -> None:
    found = [judged(seed, 8, slower(noisy(base), [5], factor)) for seed in range(20)]
    assert sum(named(one) == [5] for one in found) >= least, [named(one) for one in found]
    assert all(named(one) in ([5], []) for one in found)


@pytest.mark.parametrize("base", [0.1, 0.3, 0.65, 1.5])
@pytest.mark.parametrize("spread", [0.01, 0.05, 0.15, 0.4])
@pytest.mark.parametrize("ranks", [2, 3, 8, 32])
def test_nobody_is_named_where_all_are_alike(base: float, spread: float, ranks: int) -> None:
    found = [judged(seed, ranks, noisy(base, spread)) for seed in range(40)]
    assert all(not named(one) for one in found), [named(one) for one in found]


def whole_row(seed: int, own: Own) -> tuple[Slowness, int]:
    """What a row shows that is taken as `mldebug slow` takes it, and how many stretches it took."""
    rows, taken = SampleRows(least=STRETCHES), 0
    while True:
        one = stretch(1000 * seed + taken, 8, own)
        found = rows.add(msgspec.structs.replace(one, world_size=8), known=False)
        taken += 1
        if found is not None:
            return found, taken


@pytest.mark.parametrize(("spread", "least"), [(0.03, 39), (0.06, 39), (0.1, 36)])
def test_a_tenth_slower_is_named_behind_noise_where_more_stretches_are_taken(spread: float, least: int) -> None:  # fmt: skip
    """Of two separate rows of 3 to 8 stretches, both of which had to be certain, 13 of 20 were at the most noise."""
    found = [whole_row(seed, slower(noisy(0.35, spread), [1], 1.1))[0] for seed in range(40)]
    assert sum(named(one) == [1] for one in found) >= least
    assert all(named(one) in ([1], []) for one in found)


def shown(*waits: Sequence[float]) -> list[SampledStretch]:
    """Stretches in which rank n waits so much, and a little more or less."""
    return [
        SampledStretch(at=10.0 * at, seconds=5.0, world_size=len(some),
                       ranks=tuple(RankShares(rank=n, samples=100, waiting=wait + 0.01 * ((n + at) % 3)) for n, wait in enumerate(some)))
        for at, some in enumerate(waits)
    ]  # fmt: skip


HEALTHY, SLOW = [0.14] * 8, [0.14, 0.02, *[0.14] * 6]


def ended(row: Sequence[SampledStretch], *, known: bool = False) -> tuple[list[int], int]:
    """Whom a row names, and after how many stretches it ends; it has to end."""
    rows = SampleRows(least=STRETCHES)
    for taken, one in enumerate(row, 1):
        found = rows.add(one, known=known)
        if found is not None:
            return named(found), taken
    raise AssertionError("the row goes on")


def test_a_row_ends_as_soon_as_both_halves_show_the_rank() -> None:
    assert ended(shown(*[SLOW] * 8)) == ([1], 2 * STRETCHES)
    assert ended(shown(*[SLOW] * 8), known=True) == ([1], STRETCHES)
    assert ended(shown(*[HEALTHY] * 8)) == ([], STRETCHES)


def test_a_rank_that_was_slow_for_a_moment_is_not_named() -> None:
    for moment in (1, 2, 3):
        assert ended(shown(*[SLOW] * moment, *[HEALTHY] * LONG))[0] == []


def test_a_rank_that_becomes_slow_while_a_row_is_taken_is_named_by_its_end() -> None:
    row = shown(*[SLOW] * 2, HEALTHY, *[SLOW] * LONG)
    assert ended(row)[0] == [1]
    rows = SampleRows(least=LONG)
    found = [rows.add(one, known=False) for one in shown(*[HEALTHY] * 6, *[SLOW] * 10)]
    assert [named(one) for one in found if one is not None] == [[1]]


def test_a_rank_that_only_happens_to_wait_little_is_not_named_beside_a_slow_one() -> None:
    """It is nearer to the slow one than to the others, but does not wait so much less by itself."""
    beside = [0.08, 0.02, *[0.14] * 6]
    assert candidates(shown(beside)) == (0, 1)
    assert named(find_slow_ranks(shown(*[beside] * 8))) == []
    assert named(find_slow_ranks(shown(*[[0.04, 0.02, *[0.14] * 6]] * 8))) == [0, 1]


def rows_of(waits: Sequence[float], count: int) -> list[int]:
    """How many stretches each of so many rows of one attempt takes, where rank 1 is never quite slow."""
    rows, taken, at = SampleRows(least=STRETCHES), [0], 0
    while len(taken) <= count:
        one = shown(*[waits] * (at % 3 + 1))[-1]
        found = rows.add(one, known=False)
        assert found is None or not found.ranks
        at, taken[-1] = at + 1, taken[-1] + 1
        if found is not None:
            taken.append(0)
    return taken[:count]


def test_a_rank_that_is_never_quite_slow_costs_long_rows_only_now_and_then() -> None:
    taken = rows_of([0.15, 0.088, *[0.15] * 6], 40)
    assert taken[:CLOSELY] == [LONG] * CLOSELY
    assert sum(one > MOST for one in taken) <= CLOSELY + 40 // 12


@pytest.mark.parametrize(("factor", "within"), [(1.1, 12), (1.12, 8)])
def test_a_rank_that_becomes_a_tenth_slower_later_on_is_found_by_the_looks_in_turn(factor: float, within: int) -> None:  # fmt: skip
    """One stretch hides it mostly; four of them, taken in four looks, do not."""
    for seed in range(10):
        rows, at, looks, names = SampleRows(), 0, 0, []
        while looks < 3 * CLOSELY + within and not names:
            own = noisy(0.35, 0.1) if looks < 3 * CLOSELY else slower(noisy(0.35, 0.1), [1], factor)
            one = msgspec.structs.replace(stretch(1000 * seed + at, 8, own), world_size=8)
            found, at = rows.add(one, known=False), at + 1
            if found is not None:
                looks, names = looks + 1, named(found)
        assert names == [1]


@pytest.mark.parametrize(("spread", "times"), [(0.03, 1.1), (0.06, 1.1), (0.1, 1.1), (0.3, 2.1)])
def test_healthy_rows_take_hardly_more_stretches_and_name_nobody(spread: float, times: float) -> None:  # fmt: skip
    found = [whole_row(100 + seed, noisy(0.35, spread)) for seed in range(40)]
    assert all(not one.ranks for one, _ in found)
    assert sum(taken for _, taken in found) <= 40 * STRETCHES * times


def cycles(own: Own, seed: int, count: int) -> tuple[list[list[int]], list[int]]:
    """What an agent finds each time that it looks at a run, and how many stretches that took."""
    rows, found, taken = SampleRows(), [], [0]
    while len(found) < count:
        one = stretch(1000 * seed + sum(taken), 8, own)
        result = rows.add(msgspec.structs.replace(one, world_size=8), known=False)
        taken[-1] += 1
        if result is not None:
            found.append(named(result))
            taken.append(0)
    return found, taken[:count]


def test_an_agent_finds_a_tenth_within_its_first_looks_and_then_looks_less() -> None:
    slow = [cycles(slower(noisy(0.35, 0.06), [1], 1.1), seed, CLOSELY)[0] for seed in range(10)]
    assert all([1] in found and all(one in ([1], []) for one in found) for found in slow)
    healthy = [cycles(noisy(0.35, 0.3), seed, 3 * CLOSELY) for seed in range(10)]
    assert all(one == [] for found, _ in healthy for one in found)
    first = sum(sum(taken[:CLOSELY]) for _, taken in healthy)
    assert sum(sum(taken[CLOSELY:]) for _, taken in healthy) / 2 < 0.7 * first


def test_two_slow_ranks_of_eight_are_both_named() -> None:
    for seed in range(10):
        assert named(judged(seed, 8, slower(noisy(0.3), [1, 6], 1.3))) == [1, 6]


def test_of_two_ranks_the_one_that_waits_less_is_slow() -> None:
    assert all(named(judged(seed, 2, slower(noisy(0.3), [1], 1.3))) == [1] for seed in range(10))


def test_one_long_pause_for_one_rank_is_no_slowness() -> None:
    """Rank 0 writes a checkpoint or evaluates for minutes, and the others wait in a barrier: no step ends meanwhile."""

    def paused(at: int) -> SampledStretch:
        first = RankShares(rank=0, samples=100, waiting=0.0, places={"save (train.py)": 1.0})
        rest = (RankShares(rank=n, samples=100, waiting=1.0) for n in range(1, 8))
        return SampledStretch(at=float(at), seconds=5.0, ranks=(first, *rest))

    found = find_slow_ranks([paused(at) for at in range(MOST)])
    assert (named(found), found.why_nobody) == (
        [],
        "the others did nothing but wait, so no step has ended meanwhile",
    )


def test_a_rank_that_takes_fifty_times_as_long_is_slow() -> None:
    for seed in range(5):
        assert named(judged(seed, 8, slower(noisy(0.1), [5], 50.0))) == [5]


def test_what_rests_on_one_node_in_either_row_rests_on_it() -> None:
    found = judged(1, 8, slower(noisy(0.3), [5], 1.3))
    doubtful = msgspec.structs.replace(found, rests_on="n2")
    assert [agreed(*rows).rests_on for rows in ((doubtful, found), (found, doubtful), (found, found))] == ["n2", "n2", ""]  # fmt: skip


def test_a_slow_rank_on_hundreds_of_nodes_is_found_in_time() -> None:
    """The coordinator compares them in its main loop."""
    chance = random.Random(1)

    def share(rank: int) -> RankShares:
        waiting = (0.05 if rank == 9 else 0.3) + chance.uniform(0.0, 0.01)
        return RankShares(rank=rank, node=f"n{rank // 8}", samples=100, waiting=waiting)

    row = [SampledStretch(at=5.0 * n, seconds=5.0, ranks=tuple(map(share, range(2048)))) for n in range(3)]  # fmt: skip
    began = time.process_time()
    found = find_slow_ranks(row)
    assert (named(found), found.rests_on, time.process_time() - began < 2.0) == ([9], "", True)


def held(least: float, *, throttled: float = 0.3, idle: float = 1.0, others: float = 0.0, spinning: bool = False) -> Slowness:  # fmt: skip
    """Rank 5 has used up its CPU quota while it waits with all others, of which rank 2 waits `least` of the time, and the others 0.4; all others are
    without CPU time for `others`. `idle`: the part of the waiting off the CPU; with `spinning`, of rank 5 alone.
    """

    def stretch_of(at: int) -> SampledStretch:
        waits = [least if n == 2 else 0.4 + 0.01 * ((n + at) % 3) for n in range(8)]
        ranks = (
            RankShares(rank=n, samples=100, waiting=wait, idle_waiting=0.0 if spinning and n != 5 else idle * wait, evidence=RankEvidence(throttled=throttled if n == 5 else others, quota=0.1))
            for n, wait in enumerate(waits)
        )  # fmt: skip
        return SampledStretch(at=10.0 * at, seconds=5.0, ranks=tuple(ranks))

    return find_slow_ranks([stretch_of(at) for at in range(4)])


def test_a_rank_whose_helper_threads_get_no_cpu_is_slow_though_it_waits_as_the_others_do() -> None:
    found = held(0.4)
    assert named(found) == [5]
    assert (found.ranks[0].cause, found.ranks[0].excess.kind) == ("quota", "same")
    assert found.loss == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize(
    ("least", "options", "slow"),
    [
        (0.02, {}, [2]),  # rank 2 works while the others wait, and rank 5 among them
        (0.4, {"idle": 0.0}, []),  # it spins as it waits: the waiting has used up its quota
        (0.4, {"others": 0.3}, []),  # all have the same quota
        (
            0.4,
            {"others": 0.28, "spinning": True},
            [],
        ),  # the others spin, and use up the quota of all
        (0.4, {"throttled": 0.04}, []),
    ],
)
def test_a_quota_that_holds_nobody_up_makes_nobody_slow(
    least: float, options: dict[str, float], slow: list[int]
) -> None:
    assert named(held(least, **options)) == slow


def fetching(own: float, kind: str) -> Slowness:
    """Rank 0 waits for its GPU at `loss.item()`, rank 1 for `own` of the time: it stands in a line of the model instead, or sleeps."""

    def stretch_of(at: int) -> SampledStretch:
        waits = [0.7 + 0.01 * (at % 3), own]
        shares = (
            RankShares(rank=n, samples=100, waiting=wait, on_gpu=wait, places={"forward (model.py)": 1 - wait}, asleep={"forward (model.py)": 1 - wait if kind == "sleep" else 0.0})
            for n, wait in enumerate(waits)
        )  # fmt: skip
        return SampledStretch(at=10.0 * at, seconds=5.0, ranks=tuple(shares))

    return find_slow_ranks([stretch_of(at) for at in range(4)])


@pytest.mark.parametrize(
    ("own", "kind", "slow"),
    [
        (0.0, "work", []),  # only rank 0 prints its loss: the other's host runs ahead of its GPU
        (0.03, "work", [1]),  # it looks at its GPU as well, and finds it nearly done
        (0.0, "sleep", [1]),
    ],
)
def test_a_rank_that_never_waits_for_its_gpu_is_not_compared_with_one_that_does(
    own: float, kind: str, slow: list[int]
) -> None:
    assert named(fetching(own, kind)) == slow


RECORDED = sorted((Path(__file__).parents[2] / "fixtures/goodput").glob("*.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_samples_of_real_ranks_are_judged_right(file: Path) -> None:
    """Eight gloo ranks each, recorded while rank 1 was slowed, or nobody; `Recording` says who must be named, and the cause."""
    recording, row = msgspec.json.decode(
        file.read_bytes(), type=tuple[Recording, list[SampledStretch]]
    )
    found = find_slow_ranks(row)
    assert [(one.rank, one.cause or one.excess.kind) for one in found.ranks] == recording.slow


class Recording(msgspec.Struct):
    """What a recording shows. `how`: in what way rank 1 was slowed; `slow`: (rank, cause) of each that is slow."""

    how: str
    slow: list[tuple[int, str]]


def test_half_of_the_ranks_are_no_stragglers() -> None:
    """Their work differs: four of eight are a part of the job, not a fault."""
    found = [judged(seed, 8, slower(noisy(0.3), [4, 5, 6, 7], 1.3)) for seed in range(10)]
    assert all(not named(one) for one in found)


def test_all_slow_alike_names_nobody() -> None:
    assert all(not named(judged(seed, 8, slower(noisy(0.3), range(8), 2.0))) for seed in range(10))


def test_five_percent_are_too_little_to_name_anybody() -> None:
    found = [judged(seed, 8, slower(noisy(0.3, 0.02), [5], 1.05)) for seed in range(20)]
    assert all(not named(one) for one in found)


def test_uneven_batches_that_change_from_step_to_step_name_nobody() -> None:
    def uneven(chance: random.Random, _: int) -> float:
        return 0.2 + 0.2 * chance.random()

    assert all(not named(judged(seed, 8, uneven)) for seed in range(40))


def test_a_rank_that_is_slow_in_one_stretch_alone_is_not_named() -> None:
    for seed in range(20):
        row = [stretch(seed * 10 + n, 8, noisy(0.3)) for n in range(4)]
        row.insert(2, stretch(seed * 10 + 9, 8, slower(noisy(0.3), [3], 1.8)))
        assert not named(find_slow_ranks(row))


def test_fewer_than_three_stretches_name_nobody() -> None:
    row = [stretch(n, 8, slower(noisy(0.3), [3], 1.5)) for n in range(2)]
    found = find_slow_ranks(row)
    assert (named(found), candidates(row)) == ([], (3,))
    assert found.why_nobody == "2 of 3 stretches of samples are taken"


def test_nobody_is_named_where_a_rank_was_not_sampled() -> None:
    """The slow one may be that one, and who waits least of the others the second slowest."""
    row = [stretch(n, 8, slower(noisy(0.3), [3], 1.5)) for n in range(5)]
    assert named(find_slow_ranks([msgspec.structs.replace(one, world_size=8) for one in row])) == [
        3
    ]
    part = [msgspec.structs.replace(one, world_size=9) for one in row]
    assert (named(find_slow_ranks(part)), needs_more(part[:1])) == ([], False)
    assert (
        find_slow_ranks(part).why_nobody
        == "8 of its 9 ranks were sampled here, and the slow one may be another"
    )


def test_nothing_at_all_is_no_error() -> None:
    assert not find_slow_ranks([]).ranks
    assert (
        find_slow_ranks([SampledStretch(at=1.0, seconds=5.0, ranks=())] * 5).why_nobody
        == "fewer than two ranks could be sampled"
    )


def test_stages_of_a_pipeline_have_work_of_their_own() -> None:
    def share(rank: int) -> RankShares:
        waiting = 0.1 if rank == 3 else 0.5
        return RankShares(rank=rank, samples=100, waiting=waiting, exchanging=0.9 * waiting)

    row = [
        SampledStretch(at=float(n), seconds=5.0, ranks=tuple(map(share, range(4))))
        for n in range(5)
    ]
    assert "work differs" in find_slow_ranks(row).why_nobody


@pytest.mark.parametrize(
    ("own", "others", "words"),
    [
        ({"loading": 0.3}, {}, "it waits for its DataLoader 30 % of the time, the others 0 %"),
        ({"delayed": 0.3}, {}, "it is ready to run and gets no CPU 30 % of the time, the others 0 %"),
        (
            {"places": {"fetch (train.py)": 0.4}, "asleep": {"fetch (train.py)": 0.39}, "lines": {"fetch (train.py)": 7}},
            {"places": {"fetch (train.py)": 0.1}},
            "it stands idle in fetch (train.py:7) 40 % of the time, the others 10 %",
        ),
        (
            {"places": {"fetch (train.py)": 0.4}, "asleep": {"fetch (train.py)": 0.01}},
            {},
            "it is in fetch (train.py) 40 % of the time, the others 0 %",
        ),
        (
            {"places": {"a (t.py)": 0.5, "b (t.py)": 0.4}},
            {"places": {"a (t.py)": 0.4, "b (t.py)": 0.3}},
            "takes longer for all of it",
        ),
    ],
)  # fmt: skip
def test_the_cause_is_what_the_slow_rank_does_more(
    own: dict[str, object], others: dict[str, object], words: str
) -> None:
    def table(n: int) -> tuple[RankShares, ...]:
        slow = RankShares(rank=0, samples=100, waiting=0.02, **own)  # type: ignore[arg-type]
        rest = (
            RankShares(rank=rank, samples=100, waiting=0.32 + 0.01 * (n % 2), **others)
            for rank in (1, 2, 3)
        )  # type: ignore[arg-type]
        return (slow, *rest)

    found = find_slow_ranks(
        [SampledStretch(at=float(n), seconds=5.0, ranks=table(n)) for n in range(4)]
    )
    assert named(found) == [0]
    sentence = slow_words(found, 4)
    assert sentence.startswith(
        "rank 0 slows the run down: the others wait for it 30 % of the time, 29 rank hours a day"
    )
    assert words in sentence


@pytest.mark.parametrize(
    ("causes", "end"),
    [
        (("", ""), "each stands idle in augment (train.py:9) 20 % of the time, the others 1 %"),
        (("waits for files on /a 18 % of the time", "waits for files on /a 22 % of the time"), "; it waits for files on /a 18 % of the time"),
        (("waits for files on /a 18 % of the time", "waits for files on /b 18 % of the time"), "; each for a reason of its own"),
        (("", "waits for files on /a 18 % of the time"), "; each for a reason of its own"),
    ],
)  # fmt: skip
def test_two_slow_ranks_have_their_common_reason_in_one_sentence(
    causes: tuple[str, str], end: str
) -> None:
    """Two ranks that slept alike were each slow "for a reason of its own", as their shares differ by a percent."""
    excess = Excess(kind="sleep", place="augment (train.py:9)", own=0.18, others=0.01)
    ranks = tuple(
        SlowRank(rank=4 * n + 1, waiting=0.02, excess=msgspec.structs.replace(excess, own=own), cause_words=words)
        for n, (own, words) in enumerate(zip((0.18, 0.22), causes, strict=True))
    )  # fmt: skip
    sentence = slow_words(Slowness(ranks=ranks, loss=0.16), 8)
    assert sentence.startswith(
        "ranks 1,5 slow the run down: the others wait for them 16 % of the time"
    )
    assert sentence.endswith(end)
    assert "each each" not in sentence
