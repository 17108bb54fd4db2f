"""Simulated trainings of thirty kinds: twenty in which something goes wrong, with the events that must be found, and others in which all is as it should be."""

import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mldebug.goodput.scalars.model import TrainingPoint
from shared.goodput.training_curves import Values, points

LENGTH = 1200
Attempts = list[list[TrainingPoint]]
Wanted = tuple[str, ...]


class FaultyKind(NamedTuple):
    """A kind of failure. `make`: its attempts; `must`: events that are found, each once; `may`: events that may be found before."""

    make: Callable[[random.Random], Attempts]
    must: Wanted
    may: Wanted = ()


def model_loss(draw: random.Random, n: int, noise: float = 0.02) -> float:
    """A language model's loss at record n."""
    return 2.1 + 8 * (n + 3) ** -0.35 + draw.gauss(0, noise)


def cosine_rate(n: int, low: float = 0.1) -> float:
    """The learning rate at record n: warm-up for 100 records, then a cosine down to the share `low`."""
    return (
        3e-4 * min(1.0, (n + 1) / 100) * (low + (1 - low) * (1 + math.cos(math.pi * n / LENGTH)) / 2)
    )  # fmt: skip


def attempt(values: list[Values], first: int = 1, number: int = 0) -> list[TrainingPoint]:
    """The records of one attempt."""
    return points(values, first=first, total=LENGTH, attempt=f"run/{number}")


def shape(value: Callable[[int], Values], length: int = LENGTH) -> Attempts:
    """One attempt whose record n is `value(n)`."""
    return [attempt([value(n) for n in range(length)])]


def of_batch(seed: float, number: int) -> float:
    """What a batch adds to the loss, each time that it is read."""
    return random.Random(f"{seed}/{number}").gauss(0, 0.07)


# --- what goes wrong --------------------------------------------------------------------------------


def nan_once(draw: random.Random) -> Attempts:
    at = draw.randrange(50, LENGTH - 50)
    return shape(lambda n: {"loss": math.nan if n == at else model_loss(draw, n)})


def infinite_from_then_on(draw: random.Random) -> Attempts:
    at = draw.randrange(150, 900)
    return shape(lambda n: {"loss": math.inf if n >= at else model_loss(draw, n), "loss_scale": 65536.0})  # fmt: skip


def nan_in_the_second_attempt(draw: random.Random) -> Attempts:
    good: list[Values] = [{"loss": model_loss(draw, n)} for n in range(400)]
    return [attempt(good), attempt([{"loss": math.nan}] * 60, first=401, number=1)]


def small_spike(draw: random.Random) -> Attempts:
    at = draw.randrange(300, 900)

    def value(n: int) -> Values:
        more = 1.2 * math.exp(-(n - at) / 15) if n >= at else 0.0
        return {"loss": model_loss(draw, n, 0.01) + more, "learning_rate": cosine_rate(n)}

    return shape(value)


def spike_of_a_seldom_log(draw: random.Random) -> Attempts:
    """A record for every 50 steps: the spike is in four of them."""
    at = draw.randrange(200, 500)
    values: list[Values] = [
        {"loss": model_loss(draw, 50 * n) + (2.5 if at <= n < at + 4 else 0.0)} for n in range(700)
    ]
    return [points(values, stride=50, total=35_000)]


def spike_of_a_negative_loss(draw: random.Random) -> Attempts:
    """The likelihood of a flow."""
    at = draw.randrange(300, 900)

    def value(n: int) -> Values:
        more = 2.0 if at <= n < at + 10 else 0.0
        return {"loss": -3.5 + 2 * math.exp(-n / 100) + draw.gauss(0, 0.05) + more}

    return shape(value)


def spike_near_the_end(draw: random.Random) -> Attempts:
    at = LENGTH * 9 // 10

    def value(n: int) -> Values:
        more = 2.0 if at <= n < at + 8 else 0.0
        return {"loss": model_loss(draw, n) + more, "learning_rate": cosine_rate(n)}

    return shape(value)


def critic_explodes(draw: random.Random) -> Attempts:
    at = draw.randrange(400, 800)
    return shape(lambda n: {"loss": abs(draw.gauss(0.5, 0.2)) * (400 if n >= at else 1)})


def model_forgets_all(draw: random.Random) -> Attempts:
    at = draw.randrange(300, 800)
    return shape(lambda n: {"loss": model_loss(draw, n) if n < at else 10.8 + draw.gauss(0, 0.05)})


def loss_climbs(draw: random.Random) -> Attempts:
    at = draw.randrange(300, 600)
    return shape(lambda n: {"loss": model_loss(draw, n) * min(4.0, math.exp(max(0, n - at) / 150))})


def loss_climbs_as_it_scatters(draw: random.Random) -> Attempts:
    return shape(lambda n: {"loss": model_loss(draw, n) + max(0, n - 400) / 150 * (1 + draw.random() / 2)})  # fmt: skip


def adversary_wins(draw: random.Random) -> Attempts:
    at = draw.randrange(400, 700)

    def value(n: int) -> Values:
        more = math.exp(min(400, max(0, n - at)) / 60) - 1
        return {"loss": 1 + 0.3 * math.sin(n / 20) + draw.gauss(0, 0.15) + more}

    return shape(value)


def an_eighth_slower(draw: random.Random) -> Attempts:
    at = draw.randrange(200, 900)
    return shape(lambda n: {"tokens_per_second": draw.gauss(51_000 * (0.87 if n >= at else 1), 500), "batch_size": 1024.0})  # fmt: skip


def slower_behind_noise(draw: random.Random) -> Attempts:
    at = draw.randrange(300, 900)
    return shape(lambda n: {"samples_per_second": draw.gauss(300 * (0.8 if n >= at else 1), 18)})


def slower_between_evaluations(draw: random.Random) -> Attempts:
    at = draw.randrange(300, 900)

    def value(n: int) -> Values:
        share = (0.25 if n % 20 == 19 else 1) * (0.8 if n >= at else 1)
        return {"samples_per_second": draw.gauss(500, 10) * share, "loss": model_loss(draw, n)}

    return shape(value)


def slower_after_a_ramp(draw: random.Random) -> Attempts:
    def value(n: int) -> Values:
        stage, share = min(3, n // 200), 0.8 if n >= 900 else 1
        return {
            "samples_per_second": draw.gauss(900, 12) * (1 - 0.12 * stage) * share,
            "batch_size": 256.0 * 2**stage,
        }

    return shape(value)


def slower_after_a_restart(draw: random.Random) -> Attempts:
    def values(steps: range, seconds: float) -> list[Values]:
        return [{"step_seconds": draw.gauss(seconds, 0.01), "loss": model_loss(draw, n)} for n in steps]  # fmt: skip

    first, second = values(range(500), 0.65), values(range(500, 800), 0.85)
    return [attempt(first), attempt(second, first=501, number=1)]


def ever_fewer_tflops(draw: random.Random) -> Attempts:
    """A quarter less over 500 records: memory that fragments, a GPU that gets hot."""
    return shape(
        lambda n: {"tflops": draw.gauss(410 * (1 - 0.25 * min(1, max(0, n - 300) / 500)), 4)}
    )


def goes_back(draw: random.Random) -> Attempts:
    seed, low = draw.random(), draw.randrange(150, 280)

    def values(steps: range) -> list[Values]:
        return [{"loss": 2 + 3 * math.exp(-n / 150) + of_batch(seed, n) + draw.gauss(0, 0.01)} for n in steps]  # fmt: skip

    return [attempt(values(range(300))), attempt(values(range(low, 700)), first=low + 1)]


def reads_from_the_start_again(draw: random.Random) -> Attempts:
    seed = draw.random()

    def values(steps: range, share: float) -> list[Values]:
        return [
            {"loss": 2 + 3 * math.exp(-n / 150) + share * of_batch(seed, n - steps[0]) + draw.gauss(0, 0.01)}
            for n in steps
        ]  # fmt: skip

    first, second = values(range(350), 1.0), values(range(350, 550), 0.85)
    return [attempt(first), attempt(second, first=351, number=1)]


NAN, SPIKE, DIVERGED, DROP = ("loss_not_finite",), ("loss_spike",), ("loss_diverged",), ("throughput_drop",)  # fmt: skip
FAULTY = {
    kind.make.__name__: kind
    for kind in (
        *(FaultyKind(make, NAN) for make in (nan_once, infinite_from_then_on, nan_in_the_second_attempt)),
        *(FaultyKind(make, SPIKE) for make in (small_spike, spike_of_a_seldom_log, spike_of_a_negative_loss, spike_near_the_end)),
        *(FaultyKind(make, DIVERGED, SPIKE) for make in (critic_explodes, model_forgets_all, loss_climbs, loss_climbs_as_it_scatters, adversary_wins)),
        *(FaultyKind(make, DROP) for make in (an_eighth_slower, slower_behind_noise, slower_between_evaluations, slower_after_a_ramp)),
        *(FaultyKind(make, DROP) for make in (slower_after_a_restart, ever_fewer_tflops)),
        FaultyKind(goes_back, ("rollback",)),
        FaultyKind(reads_from_the_start_again, ("data_repeated",)),
    )
}  # fmt: skip


# --- as it should be --------------------------------------------------------------------------------


def wild_warm_up(draw: random.Random, length: int) -> Iterator[Values]:
    for n in range(length):
        wild = draw.expovariate(0.5) if n < 300 and draw.random() < 0.15 else 0.0
        loss = 9 * math.exp(-n / 60) + 2.5 + draw.gauss(0, 0.05) + wild
        yield {"loss": loss, "learning_rate": 3e-4 * min(1.0, (n + 1) / 300)}


def warm_up_without_a_rate(draw: random.Random, length: int) -> Iterator[Values]:
    for n in range(length):
        wild = draw.expovariate(0.5) if n < 90 and draw.random() < 0.3 else 0.0
        loss = 9 * math.exp(-n / 20) + 2.5 + draw.gauss(0, 0.05) + wild
        yield {"loss": loss, "tokens_per_second": draw.gauss(9000, 100) * (0.3 if n < 6 else 1)}


def end_on_other_data(draw: random.Random, length: int) -> Iterator[Values]:
    for n in range(length):
        last = n > 0.985 * length
        yield {
            "loss": model_loss(draw, n) + (1.5 if last else 0.0),
            "learning_rate": cosine_rate(n, 0.0),
            "tokens_per_second": draw.gauss(9000, 90) * (0.4 if last else 1),
        }


def ramp_of_sixteen_stages(draw: random.Random, length: int) -> Iterator[Values]:
    for n in range(length):
        stage = min(15, n // 60)
        yield {
            "loss": model_loss(draw, n, 0.1 / (1 + stage)),
            "batch_size": 32.0 * (1 + stage),
            "samples_per_second": draw.gauss(400, 8) * (1 - 0.03 * stage),
        }


def harder_data_by_stages(draw: random.Random, length: int) -> Iterator[Values]:
    """Each stage is a quarter harder at its beginning, and the sequences grow without a word."""
    for n in range(length):
        harder = 1 + 0.25 * math.exp(-(n % 250) / 90)
        loss = (2 + 2 * math.exp(-n / 200)) * harder + draw.gauss(0, 0.03)
        yield {"loss": loss, "step_seconds": draw.gauss(0.3 + 0.2 * n / length, 0.01)}


def rate_leaps_back(draw: random.Random, length: int) -> Iterator[Values]:
    """Warm restarts: the loss rises by a third within 15 records."""
    for n in range(length):
        phase = n % 300
        rise = 0.25 * min(1.0, phase / 15) * (1 - phase / 300) if n >= 300 else 0.0
        loss = 0.6 + 1.5 * math.exp(-n / 150) + rise + draw.gauss(0, 0.01)
        yield {"loss": loss, "learning_rate": 1e-3 * (1 + math.cos(math.pi * phase / 300)) / 2}


def answers_grow_longer(draw: random.Random, length: int) -> Iterator[Values]:
    """Reinforcement learning: a loss around 0 that scatters ever more, fewer samples a second."""
    for n in range(length):
        loss = draw.gauss(0, 0.02 + 0.0001 * n) * (6 if draw.random() < 0.02 else 1)
        speed = 40 / (1 + n / length) * draw.lognormvariate(0, 0.25)
        yield {"loss": loss, "reward": n / length, "samples_per_second": speed}


def critic_crosses_zero(draw: random.Random, length: int) -> Iterator[Values]:
    """The critic of a Wasserstein GAN."""
    level = 0.0
    for n in range(length):
        level += draw.gauss(0, 0.12)
        yield {"loss": -15 + 12 * (1 - math.exp(-n / 300)) + level + draw.gauss(0, 0.8)}


def three_slow_of_a_hundred(draw: random.Random, length: int) -> Iterator[Values]:
    for n in range(length):
        slow = 6 if n % 100 < 3 else 1
        yield {"loss": model_loss(draw, n), "step_seconds": draw.gauss(0.5, 0.01) * slow}


def noise_of_diffusion(draw: random.Random, length: int) -> Iterator[Values]:
    for n in range(length):
        yield {"loss": 0.08 * draw.lognormvariate(0, 0.5) + 0.1 * math.exp(-n / 50)}


def stairs_of_epochs(draw: random.Random, length: int) -> Iterator[Values]:
    """Fine-tuning: each epoch has the same batches in the same order, and a lower loss."""
    seed = draw.random()
    for n in range(length):
        own = 0.25 * of_batch(seed, n % 300) + draw.gauss(0, 0.01)
        yield {"loss": 1.6 - 0.3 * (n // 300) + own}


def mean_since_the_epoch_began(draw: random.Random, length: int) -> Iterator[Values]:
    whole = 0.0
    for n in range(length):
        whole = (whole if n % 200 else 0.0) + 1 + 2 * math.exp(-n / 300) + draw.gauss(0, 0.3)
        yield {"loss": whole / (n % 200 + 1)}


def warmer_by_day(draw: random.Random, length: int) -> Iterator[Values]:
    for n in range(length):
        yield {"tflops": 400 * (0.94 if math.sin(n / 80) > 0 else 1) + draw.gauss(0, 4)}


def penalty_grows(draw: random.Random, length: int) -> Iterator[Values]:
    """The loss is how far a policy has gone from where it began: it grows as it should."""
    for n in range(length):
        yield {"loss": 1e-4 * (1 + n / 20) * draw.lognormvariate(0, 0.4), "reward": n / length}


def tasks_in_turns(draw: random.Random, length: int) -> Iterator[Values]:
    """Twenty records of one of four tasks, each with a loss and a speed of its own."""
    task = 0
    for n in range(length):
        task = draw.randrange(4) if n % 20 == 0 else task
        loss = (2.0, 3.2, 1.1, 2.6)[task] * (1 + math.exp(-n / 150)) + draw.gauss(0, 0.04)
        yield {"loss": loss, "tokens_per_second": draw.gauss((900, 700, 1000, 800)[task], 9)}


HEALTHY = {
    one.__name__: one
    for one in (wild_warm_up, warm_up_without_a_rate, end_on_other_data, ramp_of_sixteen_stages, harder_data_by_stages,
                rate_leaps_back, answers_grow_longer, critic_crosses_zero, three_slow_of_a_hundred, noise_of_diffusion,
                stairs_of_epochs, mean_since_the_epoch_began, warmer_by_day, penalty_grows)
}  # fmt: skip
