"""Events in the figures of a run: every planted one is found, and healthy curves of many shapes have none."""

import math
import random

import msgspec
import pytest

from mldebug.goodput.scalars.model import TrainingPoint
from mldebug.goodput.scalars.stored_training import TrainingRules
from shared.goodput.training_curves import HEALTHY, LENGTH, Values, cosine, found, points

SEEDS = 16  # of each of the 16 shapes: 256 curves


@pytest.mark.parametrize("shape", HEALTHY)
def test_healthy_curves_have_no_event(shape: str) -> None:
    wrong = {}
    for seed in range(SEEDS):
        values = HEALTHY[shape](random.Random(f"{shape}{seed}"), LENGTH)
        if kinds := found(points(values)):
            wrong[seed] = kinds
    assert wrong == {}


def test_the_curves_are_many() -> None:
    assert len(HEALTHY) * SEEDS >= 200


def curve(seed: int, length: int = LENGTH) -> list[Values]:
    return list(cosine(random.Random(seed), length))


def changed(values: list[Values], at: int, count: int, **fields: float) -> list[Values]:
    return [one | fields if at <= n < at + count else one for n, one in enumerate(values)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_found_at_its_step(seed: int, value: float) -> None:
    at = random.Random(seed).randrange(1, LENGTH)
    rules = TrainingRules()
    rules.add(points(changed(curve(seed), at, LENGTH, loss=value)))
    (event,) = rules.events
    assert (event.kind, event.step, event.ended) == ("loss_not_finite", at + 1, None)
    assert f"at step {at + 1}" in event.sentence


def test_one_step_without_a_number_is_an_event_that_ends() -> None:
    rules = TrainingRules()
    rules.add(points(changed(curve(1), 300, 1, loss=math.nan)))
    (event,) = rules.events
    assert event.ended is not None
    assert event.step == 301


def test_a_loss_that_never_was_a_number_is_found() -> None:
    assert found(points([{"loss": math.nan}] * 40)) == ["loss_not_finite"]


@pytest.mark.parametrize("every", [2, 4, 8, 16])
def test_nan_in_every_few_records_lasts_until_the_numbers_stay(every: int) -> None:
    """Its end was once told while every second record was still NaN."""
    turns: list[Values] = [{"loss": 1.0 if n % every else math.nan} for n in range(320)]
    rules = TrainingRules()
    rules.add(points([*[{"loss": 1.0}] * 100, *turns]))
    (event,) = rules.events
    assert (event.kind, event.step, event.ended) == ("loss_not_finite", 101, None)
    rules.add(points([{"loss": 1.0}] * 20, first=421))
    (event,) = rules.events
    assert event.ended is not None
    rules.add(points([{"loss": math.nan}] * 30, first=441))
    assert [str(one.kind) for one in rules.events] == ["loss_not_finite"] * 2
    assert rules.events[-1].ended is None


def test_nan_with_a_number_now_and_then_lasts_while_its_rows_grow() -> None:
    """A run that falls apart: each time it takes longer to come back."""
    rows = [[{"loss": math.nan}] * (3 * 2**n) + [{"loss": 1.0}] for n in range(6)]
    rules = TrainingRules()
    rules.add(points([*[{"loss": 1.0}] * 100, *(one for row in rows for one in row)]))
    (event,) = rules.events
    assert event.ended is None


def test_a_run_that_prints_nan_by_habit_is_found_when_it_stays() -> None:
    habit: list[Values] = [{"loss": 1.0 if n % 10 == 9 else math.nan} for n in range(200)]
    assert found(points(habit)) == []
    assert found(points([*habit, *[{"loss": math.nan}] * 30])) == ["loss_not_finite"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("times", [1.6, 3.0, 50.0])
def test_a_spike_is_found_and_ends(seed: int, times: float) -> None:
    values, at = curve(seed), random.Random(seed).randrange(200, 700)
    loss = values[at]["loss"] * times
    rules = TrainingRules()
    rules.add(points(changed(values, at, 12, loss=loss)))
    (event,) = rules.events
    assert event.kind == "loss_spike"
    assert event.step in (at + 1, at + 2, at + 3)
    assert event.ended is not None


@pytest.mark.parametrize("seed", range(20))
def test_a_spike_that_stays_is_a_divergence(seed: int) -> None:
    values, at = curve(seed), random.Random(seed).randrange(200, 600)
    kinds = found(points(changed(values, at, LENGTH, loss=9.5)))
    assert kinds == ["loss_spike", "loss_diverged"]


def quiet_time(when: str, seed: int, at: int) -> list[Values]:
    """A steady run of which `when` says what is so at record `at`: "" for nothing."""
    draw = random.Random(seed)
    values: list[Values] = [
        {"loss": 2 + draw.gauss(0, 0.02), "learning_rate": 3e-4, "batch_size": 256.0}
        for _ in range(LENGTH)
    ]
    for n, one in enumerate(values):
        if when == "the learning rate rises":
            one["learning_rate"] = 3e-4 * min(1.0, (n + 1) / (at + 100))
        elif when == "the batch grows" and n >= at:
            one["batch_size"] = 512.0
        elif when == "the rate is spent":
            one["learning_rate"] = 3e-4 if n < at - 50 else 3e-6
    return values


QUIET = {
    "warm-up": 70,
    "the learning rate rises": 400,
    "the batch grows": 400,
    "the rate is spent": 400,
    "the last steps": LENGTH - 16,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("when", QUIET)
def test_a_leap_of_the_loss_at_a_time_that_is_quiet_is_no_event(when: str, seed: int) -> None:
    """Each time is quiet by itself: the same leap at another time of the same run, or without what makes it quiet, is found."""
    at = QUIET[when]
    assert found(points(changed(quiet_time(when, seed, at), at, 12, loss=6.0))) == []
    elsewhere = 650 if when in ("warm-up", "the last steps", "the batch grows") else at
    plain = quiet_time("" if elsewhere == at else when, seed, at)
    assert found(points(changed(plain, elsewhere, 12, loss=6.0))) == ["loss_spike"]


@pytest.mark.parametrize("seed", range(10))
def test_a_lower_throughput_of_another_batch_size_is_no_drop(seed: int) -> None:
    """A ramp of the batch, a step of it down, and the first records of another start: the same fall without these is one."""
    draw = random.Random(seed)

    def falling(**second: float) -> list[Values]:
        return [
            {"samples_per_second": draw.gauss(800 if n < 400 else 600, 8), "batch_size": 256.0}
            | (second if n >= 400 else {})
            for n in range(800)
        ]

    assert found(points(falling())) == ["throughput_drop"]
    for size in (128.0, 512.0):
        assert found(points(falling(batch_size=size))) == []
    slow_start: list[Values] = [{"samples_per_second": draw.gauss(80 if n < 12 else 800, 8)} for n in range(200)]  # fmt: skip
    steady: list[Values] = [{"samples_per_second": draw.gauss(800, 8)} for _ in range(400)]
    assert found(points(steady), points(slow_start, first=401, attempt="run/1")) == []


@pytest.mark.parametrize("seed", range(20))
def test_harder_data_are_no_divergence(seed: int) -> None:
    """Another mixture, or longer texts: the loss leaps by a third and stays there, or falls again as the model learns."""
    for lasting in (math.inf, 200.0):
        values, at = curve(seed, 1500), random.Random(seed).randrange(300, 600)
        before = values[at]["loss"]
        for n in range(at, len(values)):
            higher = 0.35 * before * math.exp(-(n - at) / lasting)
            values[n] = values[n] | {"loss": values[n]["loss"] + higher}
        assert set(found(points(values, total=None))) <= {"loss_spike"}


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_that_climbs_slowly_is_a_divergence(seed: int) -> None:
    values = curve(seed)
    for n in range(450, LENGTH):
        values[n] = values[n] | {"loss": values[n]["loss"] * math.exp((n - 450) / 180)}
    assert "loss_diverged" in found(points(values))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "figure", ["tokens_per_second", "samples_per_second", "tflops", "step_seconds"]
)
@pytest.mark.parametrize("share", [0.86, 0.5, 0.1])
def test_a_lower_throughput_is_found_with_what_changed(
    seed: int, figure: str, share: float
) -> None:
    draw = random.Random(f"{seed}{figure}{share}")
    at = draw.randrange(120, 700)

    def row(count: int, level: float) -> list[Values]:
        values = [draw.gauss(level, 0.03 * level) for _ in range(count)]
        if figure == "step_seconds":
            values = [1 / one for one in values]
        return [{figure: one, "batch_size": 512.0} for one in values]

    rules = TrainingRules()
    rules.add(points(row(at, 800.0), ranks="8"))
    rules.add(points(row(150, 800.0 * share), first=at + 1, ranks="7"))
    (event,) = rules.events
    assert event.kind == "throughput_drop"
    assert event.step is not None
    assert abs(event.step - at) < 24
    assert "the same batch size of 512" in event.sentence
    assert event.sentence.endswith("what changed: ranks 8, now 7")
    rules.add(points(row(150, 800.0), first=at + 151, ranks="8"))
    assert rules.events[0].ended is not None


@pytest.mark.parametrize("seed", range(10))
def test_a_drop_while_the_sequences_grow_is_found(seed: int) -> None:
    """A curriculum is no excuse for a rank that became slow on the way."""
    draw = random.Random(seed)
    at = draw.randrange(300, 600)
    values: list[Values] = [
        {"step_seconds": (0.2 + n / 1500) * (1.5 if n >= at else 1) * draw.gauss(1, 0.02)}
        for n in range(900)
    ]
    rules = TrainingRules()
    rules.add(points(values))
    assert rules.events
    assert rules.events[0].kind == "throughput_drop"
    assert abs((rules.events[0].step or 0) - at) < 24


def test_texts_of_all_lengths_hide_no_drop() -> None:
    """Where each batch is as long as its longest text, another length is no other stage."""
    draw = random.Random(7)
    values: list[Values] = [
        {"sequence_length": float(draw.randrange(200, 900)), "tflops": draw.gauss(400 if n < 400 else 300, 8)}
        for n in range(800)
    ]  # fmt: skip
    assert found(points(values)) == ["throughput_drop"]


def test_a_drop_of_a_twentieth_is_none() -> None:
    draw = random.Random(4)
    values: list[Values] = [{"tflops": draw.gauss(400 if n < 400 else 380, 4)} for n in range(800)]
    assert found(points(values)) == []


def with_data(seed: int, steps: range, *, data_from: int = 0, scale: float = 1.0) -> list[Values]:
    """The losses of steps whose batches are drawn by number: step n reads batch `n - data_from`."""
    losses = []
    for step in steps:
        batch = random.Random(f"{seed}/{step - data_from}").gauss(0, 0.06)
        own = random.Random(f"{seed}/{step}/{scale}").gauss(0, 0.01)
        losses.append({"loss": 2 + 3 * math.exp(-step / 150) + scale * batch + own})
    return losses


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("stride", [1, 10])
def test_a_run_that_goes_back_to_a_checkpoint_has_a_rollback_alone(seed: int, stride: int) -> None:
    """In one process or in the next attempt, it reads the data that follow: the same as before, or others."""
    low = random.Random(seed).randrange(60, 150)
    first = points(with_data(seed, range(200)), first=stride, stride=stride)
    for data in (0, 7000):
        for attempt in ("run/0", "run/1"):
            again = points(with_data(seed, range(low, low + 200), data_from=data), first=low * stride, stride=stride, attempt=attempt)  # fmt: skip
            rules = TrainingRules()
            rules.add([*first, *again])
            (event,) = rules.events
            assert (event.kind, event.step) == ("rollback", low * stride)
            assert f"steps {low * stride} to {200 * stride}" in event.sentence


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("low", [100, 200])
def test_data_that_are_read_again_from_their_start_are_found(seed: int, low: int) -> None:
    """After a resume at an earlier step, and at the next one; the weights have learned since, so the swings are smaller."""
    first = points(with_data(seed, range(200)), first=0)
    again = points(with_data(seed, range(low, low + 100), data_from=low, scale=0.8), first=low, attempt="run/1")  # fmt: skip
    kinds = found(first, again)
    assert kinds == (["rollback"] if low < 200 else []) + ["data_repeated"]


def test_epochs_are_no_rollback_whether_they_begin_at_0_or_at_the_first_log() -> None:
    values = with_data(3, range(900))
    for first, stride in ((0, 1), (1, 1), (10, 10), (50, 50)):
        epochs = [points(values[n : n + 90], first=first, stride=stride) for n in range(0, 900, 90)]
        assert found(*epochs) == []


def test_a_start_without_a_checkpoint_is_a_rollback_to_the_beginning() -> None:
    first, again = points(curve(1, 200)), points(curve(2, 200), attempt="run/1")
    assert found(first, again) == ["rollback"]


def test_ranks_that_print_one_step_after_the_other_are_no_rollback() -> None:
    values = curve(1, 300)
    row = [one for pair in zip(points(values), points(values), strict=True) for one in pair]
    assert found(row) == []
    behind = [*points(values[:9]), *(p for n in range(9, 299) for p in points([values[n], values[n - 2]], first=n + 1, stride=-2))]  # fmt: skip
    assert found(behind) == []


@pytest.mark.parametrize("size", [1e59, 1e200, 1.7e308])
def test_amounts_that_no_training_has_raise_nothing(size: float) -> None:
    """A log may hold any number; an error in the rules would end the agent for all users of the node."""
    draw = random.Random(2)
    rules = TrainingRules()
    for steps in (range(200), range(50, 150)):
        values = [{"loss": size * draw.uniform(-1, 1), "learning_rate": size} for _ in steps]
        rules.add(points(values, first=steps[0]))
    assert msgspec.json.decode(msgspec.json.encode(rules), type=TrainingRules).counts == rules.counts  # fmt: skip


def nan_rows(*rows: int, new_attempts: bool = False) -> list[str]:
    """The events of a run that becomes NaN for so many records, several times, and comes back each time."""
    parts = [
        points([{"loss": 2.0}] * 40 + [{"loss": math.nan}] * row, first=500 * n, attempt=f"run/{n if new_attempts else 0}")
        for n, row in enumerate(rows)
    ]  # fmt: skip
    return [one for one in found(*parts) if one != "rollback"]


def test_a_run_that_becomes_nan_again_after_it_came_back_is_found_again() -> None:
    """After a rollback in the same processes, and after each of several restarts."""
    assert nan_rows(200, 300) == ["loss_not_finite"] * 2
    assert nan_rows(200, 300, 250, 260, new_attempts=True) == ["loss_not_finite"] * 4


def test_what_the_rules_remember_survives_being_stored() -> None:
    """Stored and read back after each record, they find the same."""
    row = points(changed(changed(curve(5), 400, 10, loss=30.0), 700, 1, loss=math.nan))
    at_once, stored = TrainingRules(), TrainingRules()
    at_once.add(row)
    for n in range(0, len(row), 7):
        stored.add(row[n : n + 7])
        stored = msgspec.json.decode(msgspec.json.encode(stored), type=TrainingRules)
    assert stored.events == at_once.events
    assert [str(one.kind) for one in stored.events] == ["loss_spike", "loss_not_finite"]


def test_what_the_rules_remember_is_bounded() -> None:
    draw = random.Random(1)
    rules = TrainingRules()
    for n in range(20_000):
        wild = draw.choice([math.nan, 1e308, -1e308, 1.0, draw.gauss(0, 1)])
        values = {"loss": wild, "batch_size": draw.choice([1.0, math.nan]), "tflops": draw.random()}
        rules.add([TrainingPoint(at=float(n), step=draw.randrange(10**6), values=values, attempt=str(n // 999))])  # fmt: skip
    assert len(msgspec.json.encode(rules)) < 60_000
    assert (
        msgspec.json.decode(msgspec.json.encode(rules), type=TrainingRules).counts == rules.counts
    )
