"""Events in thirty kinds of trainings: what goes wrong in each is found, and nothing is in those that go as they should."""

import math
import random
from collections import Counter
from collections.abc import Iterable

import pytest

from mldebug.goodput.scalars.loss_levels import MOST_LEVELS
from mldebug.goodput.scalars.loss_rules import GIVEN_UP, WINDOW, SpikeRule
from mldebug.goodput.scalars.model import EventKind
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


LOSS_EVENTS = (EventKind.SPIKE, EventKind.DIVERGED)


@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_that_take_turns_are_told_a_few_times_and_then_known(seed: int) -> None:
    """Nothing tells the first turn from a fall. A speed of each task is told where it is rare, such as one task five times in a row."""
    rules = TrainingRules()
    rules.add(points(tasks_in_turns(random.Random(seed), 6000), total=None))
    late = [one.kind for one in rules.events if (one.step or 0) > 4000]
    assert len(late) <= 3
    assert not set(late) & set(LOSS_EVENTS)
    assert sum(rules.counts.get(kind, 0) for kind in LOSS_EVENTS) <= 4


def two_tasks(seed: int, turn: int, length: int = 4000) -> list[float]:
    """The losses of two tasks that take turns of so many records."""
    draw = random.Random(seed)
    return [
        (2.0, 3.2)[n // turn % 2] * (1 + math.exp(-n / 150)) + draw.gauss(0, 0.04)
        for n in range(length)
    ]


def loss_events(losses: Iterable[float]) -> list[str]:
    return found(points([{"loss": one} for one in losses], total=None))


@pytest.mark.parametrize("turn", [1, 3, 10, 20, 50, 100, 200, 400])
@pytest.mark.parametrize("seed", [1, 2])
def test_two_tasks_in_turns_are_told_twice_at_most(turn: int, seed: int) -> None:
    """Each return to the higher loss was told where turns are long."""
    kinds = Counter(loss_events(two_tasks(seed, turn)))
    assert kinds["loss_spike"] <= 2
    assert kinds["loss_diverged"] <= 1
    assert turn > 20 or not kinds


@pytest.mark.parametrize("turn", [1, 10, 20, 50])
def test_a_spike_above_all_levels_of_a_run_is_told(turn: int) -> None:
    """The spread of both tasks together would have hidden any below 11."""
    usual, losses = loss_events(two_tasks(1, turn)), two_tasks(1, turn)
    for n in range(3000, 3012):
        losses[n] = 5.0 + n % 3
    assert Counter(loss_events(losses)) - Counter(usual) == Counter(["loss_spike"])


@pytest.mark.parametrize("turn", [1, 10, 20, 50])
def test_a_divergence_of_a_run_with_tasks_in_turns_is_told(turn: int) -> None:
    usual, losses = loss_events(two_tasks(1, turn)), two_tasks(1, turn)
    climbs = [one * (1 + max(0, n - 2500) / 500) for n, one in enumerate(losses)]
    assert "loss_diverged" in Counter(loss_events(climbs)) - Counter(usual)
    leaps = [one if n < 2500 else one + 8 for n, one in enumerate(losses)]
    assert "loss_diverged" in Counter(loss_events(leaps)) - Counter(usual)


def test_a_loss_that_falls_and_leaps_back_is_told() -> None:
    """Where it was before is no level between which it goes to and fro."""
    draw = random.Random(3)
    losses = [(3.0 if n < 300 or 800 <= n < 830 else 1.5) + draw.gauss(0, 0.02) for n in range(1200)]  # fmt: skip
    assert loss_events(losses) == ["loss_spike"]


def test_the_levels_that_are_kept_are_few() -> None:
    draw, rule = random.Random(7), SpikeRule()
    tasks = [draw.randrange(12) for _ in range(400)]
    losses = [{"loss": 1.5 ** tasks[n // 30] + draw.gauss(0, 0.01)} for n in range(12000)]
    for point in points(losses, total=None):
        rule.add(point)
    assert len(rule.levels) <= MOST_LEVELS
    assert max(len(one.losses) for one in rule.levels) <= WINDOW
    assert len(rule.far_high) <= GIVEN_UP
    assert len(rule.far_low) <= WINDOW


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
