"""Events in thirty kinds of trainings: what goes wrong in each is found, and nothing is in those that go as they should."""

import math
import random
from collections import Counter

import pytest

from mldebug.goodput.scalars.stored_training import TrainingRules
from shared.goodput.training_curves import Values, found, points
from shared.goodput.training_kinds import FAULTY, HEALTHY, LENGTH, tasks_in_turns

SEEDS = range(6)


@pytest.mark.parametrize("name", FAULTY)
def test_what_goes_wrong_is_found_once_and_nothing_else(name: str) -> None:
    kind, wrong = FAULTY[name], {}
    for seed in SEEDS:
        kinds = Counter(found(*kind.make(random.Random(f"{name}{seed}"))))
        others = kinds.keys() - {*kind.must, *kind.may}
        if others or any(kinds[one] != 1 for one in kind.must):
            wrong[seed] = kinds
    assert wrong == {}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_goes_as_it_should_has_no_event(name: str) -> None:
    wrong = {}
    for seed in SEEDS:
        values = HEALTHY[name](random.Random(f"{name}{seed}"), LENGTH)
        if kinds := found(points(values, total=LENGTH)):
            wrong[seed] = kinds
    assert wrong == {}


def test_the_kinds_are_thirty_and_more() -> None:
    assert (len(FAULTY), len(HEALTHY)) == (20, 14)


@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_that_take_turns_are_told_a_few_times_and_then_known(seed: int) -> None:
    """Nothing tells the first turn from a fall. After two hundred turns only what is rare is news, such as one task five times in a row."""
    rules = TrainingRules()
    rules.add(points(tasks_in_turns(random.Random(seed), 6000), total=None))
    late = [one.kind for one in rules.events if (one.step or 0) > 4000]
    assert len(late) <= 3
    assert sum(rules.counts.values()) <= 12


def dips(*lengths: int, depth: float = 0.7, gap: int = 200) -> list[Values]:
    """A throughput that falls for so many records each time."""
    draw, values = random.Random(3), []
    for length in (0, *lengths):
        values += [{"tflops": draw.gauss(400 * depth, 4)} for _ in range(length)]
        values += [{"tflops": draw.gauss(400, 4)} for _ in range(gap)]
    return values


def test_a_fall_that_came_and_went_twice_is_told_again_where_it_is_deeper_or_lasts() -> None:
    assert len(found(points(dips(40, 40), total=None))) == 2
    assert len(found(points(dips(40, 40, 40, 40), total=None))) == 2
    assert len(found(points(dips(40, 40, 40, 200), total=None))) == 3
    deeper = [*dips(40, 40, 40), *dips(40, depth=0.5)]
    assert len(found(points(deeper, total=None))) == 3


def test_a_third_spike_of_the_same_height_is_the_nature_of_the_run_and_a_higher_one_is_not() -> (
    None
):
    def spikes(*heights: float) -> list[str]:
        draw, values = random.Random(5), [2.0] * 150
        for height in heights:
            values += [2.0] * 80 + [2.0 + height] * 10
        return found(points([{"loss": one + draw.gauss(0, 0.02)} for one in [*values, *[2.0] * 80]], total=None))  # fmt: skip

    assert spikes(2.0, 2.0, 2.0, 2.0) == ["loss_spike"] * 2
    assert spikes(2.0, 2.0, 2.0, 9.0) == ["loss_spike"] * 3


def test_a_loss_that_has_only_ever_climbed_is_no_divergence() -> None:
    """What it climbs from must have been its usual one for a while: a penalty that grows from 0 on is none."""
    grown = [{"loss": 0.01 + n / 500} for n in range(LENGTH)]
    flat = [{"loss": 1.0 + max(0, n - 400) / 200 + 0.01 * math.sin(n)} for n in range(LENGTH)]
    assert found(points(grown, total=None)) == []
    assert found(points(flat, total=None)) == ["loss_diverged"]
