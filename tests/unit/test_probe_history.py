"""History of probes: noise and one bad run are nothing, a lasting change is found; what is stored survives what a disk does."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.probing.history import (
    ACCEPTED,
    LAST,
    LEAST,
    Run,
    Series,
    Standing,
    Walk,
    judge,
    judge_all,
    sentence,
)

SERIES = Series(
    op="all_reduce", bytes=1 << 24, dtype="float32", ranks=8, device="NVIDIA H200", nodes="n1",
    torch="2.9.0", nccl="2.27.5", nccl_algo="", variables="",
)  # fmt: skip
USUAL = 400e9
Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "a steady machine": lambda dice: dice.gauss(1.0, 0.01),
    "an unsteady machine": lambda dice: max(0.01, dice.gauss(1.0, 0.1)),
    "times that are long now and then": lambda dice: 1 / (1 + dice.expovariate(1 / 0.05)),
}


def runs(speeds: list[float], scale: float = USUAL) -> list[Run]:
    return [
        Run(at=float(number), seconds=1.0, busbw=scale * one) for number, one in enumerate(speeds)
    ]


def standings(speeds: list[float]) -> list[Standing]:
    """After each run."""
    walk, found = Walk(), []
    for one in speeds:
        walk.take(one)
        found.append(walk.standing)
    return found


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_noise_alone_alarms_in_less_than_one_of_1000_series(noise: Noise) -> None:
    dice = random.Random(7)
    alarmed = sum(
        Standing.SHIFTED in standings([noise(dice) for _ in range(100)]) for _ in range(1001)
    )
    assert alarmed <= 1


@given(st.integers(0, 10**9), st.integers(LEAST, 80))
def test_a_lasting_drop_of_10_percent_is_found_with_the_third_run(seed: int, before: int) -> None:
    dice = random.Random(seed)
    level = [1.0] * before + [0.9] * LAST
    speeds = [one * dice.uniform(0.99, 1.01) for one in level]
    found = standings(speeds)
    assert Standing.SHIFTED not in found[:-1]
    assert found[-1] is Standing.SHIFTED
    assert judge(SERIES, runs(speeds)).standing is Standing.SHIFTED


@given(st.integers(0, 10**9), st.integers(0, 60), st.floats(0.0, 0.9))
def test_one_bad_run_is_nothing(seed: int, place: int, bad: float) -> None:
    dice = random.Random(seed)
    speeds = [dice.uniform(0.99, 1.01) for _ in range(61)]
    speeds[place] = bad
    assert Standing.SHIFTED not in standings(speeds)


def test_an_improvement_is_told_as_one() -> None:
    judged = judge(SERIES, runs([1.0] * 10 + [1.2] * 3))
    assert judged.standing is Standing.IMPROVED
    assert "20% faster than usual in each of the last 3 runs" in sentence(judged)


def test_a_shift_is_told_until_it_is_over_or_the_usual() -> None:
    found = standings([1.0] * 20 + [0.8] * (ACCEPTED + LAST))
    assert found[20:22] == [Standing.STEADY] * 2
    assert set(found[22:-1]) == {Standing.SHIFTED}
    assert found[-1] is Standing.STEADY
    assert standings([1.0] * 20 + [0.8] * 3 + [1.0])[-1] is Standing.STEADY


def test_a_slow_drift_of_shifted_runs_never_becomes_the_measure() -> None:
    """Runs since the shift are no part of the usual ones: the median told stays the one of before."""
    judged = judge(SERIES, runs([1.0] * 10 + [0.8] * 20))
    assert judged.median == USUAL
    assert judged.change == pytest.approx(-0.2)


def test_few_runs_say_nothing() -> None:
    judged = judge(SERIES, runs([1.0] * (LEAST - 1) + [0.1] * LAST))
    assert judged.standing is Standing.FEW
    assert (judged.median, judged.change, sentence(judged)) == (None, None, "")


def test_a_barrier_is_judged_by_its_time() -> None:
    slow = [Run(at=1.0, seconds=one, busbw=0.0) for one in [1e-5] * 10 + [2e-5] * 3]
    judged = judge(msgspec.structs.replace(SERIES, op="barrier", bytes=0), slow)
    assert judged.standing is Standing.SHIFTED
    assert "50% slower" in sentence(judged)
    assert "per second" in sentence(judged)


def test_shifted_ones_stand_first() -> None:
    steady, shifted = [1.0] * 20, [1.0] * 10 + [0.8] * 3
    other = msgspec.structs.replace(SERIES, op="broadcast")
    told = judge_all([(SERIES, runs(steady)), (other, runs(shifted)), (SERIES, [])])
    assert [one.standing for one in told] == [Standing.SHIFTED, Standing.STEADY]
