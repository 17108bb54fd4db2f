"""Simulated training figures: healthy curves of several shapes, and what can go wrong in them."""

import math
import random
from collections.abc import Callable, Iterable, Iterator

from mldebug.goodput.scalars.model import TrainingPoint
from mldebug.goodput.scalars.stored_training import TrainingRules

AT = 1_795_240_000.0
LENGTH = 900
Values = dict[str, float]
Shape = Callable[[random.Random, int], Iterator[Values]]


def cosine(draw: random.Random, length: int) -> Iterator[Values]:
    """A language model: power-law loss, warm-up and cosine schedule."""
    noise, floor = draw.uniform(0.005, 0.05), draw.uniform(1.5, 3.0)
    for n in range(length):
        rate = (
            3e-4 * min(1.0, (n + 1) / 80) * (0.05 + 0.95 * (1 + math.cos(math.pi * n / length)) / 2)
        )
        loss = floor + 8 * (n + 3) ** -0.35 + draw.gauss(0, noise)
        yield {
            "loss": loss,
            "learning_rate": rate,
            "tokens_per_second": 12000 * draw.gauss(1, 0.02),
        }


def restarts(draw: random.Random, length: int) -> Iterator[Values]:
    """Cosine with warm restarts: the loss rises a little with each."""
    for n in range(length):
        phase = (n % 200) / 200
        loss = 0.5 + 1.5 * math.exp(-n / 150) + 0.07 * (1 - phase) ** 2 + draw.gauss(0, 0.004)
        yield {"loss": loss, "learning_rate": 1e-3 * (1 - phase)}


def reward(draw: random.Random, length: int) -> Iterator[Values]:
    """Reinforcement learning: a policy loss around 0 with heavy tails."""
    for n in range(length):
        tail = draw.gauss(0, 1) / max(0.02, abs(draw.gauss(0, 1)))
        yield {
            "loss": 0.05 * tail,
            "reward": n / length + draw.gauss(0, 0.3),
            "samples_per_second": draw.uniform(20, 60),
        }


def adversarial(draw: random.Random, length: int) -> Iterator[Values]:
    """The generator of a GAN: a slow wave that drifts upward, with bursts."""
    level = 1.0
    for n in range(length):
        level = max(0.5, level + draw.gauss(0.002, 0.03))
        burst = draw.expovariate(1.5) if draw.random() < 0.08 else 0.0
        yield {"loss": level + 0.3 * math.sin(n / 23) + draw.gauss(0, 0.15) + burst}


def discriminator(draw: random.Random, length: int) -> Iterator[Values]:
    """Both losses of a GAN in turns."""
    for n in range(length):
        yield {"loss": abs((2.5 if n % 2 else 0.6) + draw.gauss(0, 0.2))}


def hump(draw: random.Random, length: int) -> Iterator[Values]:
    """A long warm-up in which the loss rises before it falls."""
    for n in range(length):
        loss = (
            2.5
            + 5 * math.exp(-n / 25)
            + 1.5 * math.exp(-(((n - 150) / 40) ** 2))
            + draw.gauss(0, 0.02)
        )
        yield {
            "loss": loss,
            "learning_rate": min(n, 300) * 1e-6 if n < 300 else 3e-4 * (1 - (n - 300) / length),
        }


def evaluated(draw: random.Random, length: int) -> Iterator[Values]:
    """Every 25th record stands behind an evaluation, which cost time."""
    for n in range(length):
        slow = 0.3 if n % 25 == 24 else 1.0
        yield {
            "loss": 1 + 3 * math.exp(-n / 200) + draw.gauss(0, 0.03),
            "samples_per_second": 500 * slow * draw.gauss(1, 0.05),
        }


def accumulated(draw: random.Random, length: int) -> Iterator[Values]:
    """Gradient accumulation: micro-steps of one batch stand together, and their loss wanders."""
    drift = 0.0
    for n in range(length):
        drift = 0.9 * drift + draw.gauss(0, 0.05)
        yield {
            "loss": 2 + 4 * math.exp(-n / 120) + drift,
            "step_seconds": (1.6 if n % 8 == 7 else 0.4) * draw.gauss(1, 0.05),
        }


def ramped(draw: random.Random, length: int) -> Iterator[Values]:
    """The batch grows in four stages: less noise, another throughput, and a loss that leaps with the harder data."""
    for n in range(length):
        stage = min(3, n // 220)
        loss = 2 + 3 * math.exp(-n / 150) + 0.6 * stage + draw.gauss(0, 0.08 / (stage + 1))
        yield {
            "loss": loss,
            "batch_size": 256.0 * 2**stage,
            "samples_per_second": 900 / (1 + 0.3 * stage) * draw.gauss(1, 0.02),
        }


def mixed_units(draw: random.Random, length: int) -> Iterator[Values]:
    """Two loggers take turns: one tells the throughput of all GPUs, the other that of one; MFU changes its unit on the way."""
    for n in range(length):
        whole = draw.random() < 0.5
        mfu = 41.0 if n > length / 2 else 0.41
        yield {
            "loss": 1.5 + 2 * math.exp(-n / 90) + draw.gauss(0, 0.02),
            "tokens_per_second": (96000 if whole else 12000) * draw.gauss(1, 0.02),
            "mfu": mfu,
        }


def other_unit(draw: random.Random, length: int) -> Iterator[Values]:
    """The log changes the unit of its throughput after a while, and prints NaN for what it has not computed."""
    for n in range(length):
        loss = math.nan if n % 10 else 1.5 + draw.gauss(0, 0.02)
        yield {
            "loss": loss,
            "tokens_per_second": (12.0 if n > 500 else 12000.0) * draw.gauss(1, 0.02),
        }


def finished(draw: random.Random, length: int) -> Iterator[Values]:
    """The end of a schedule: the rate goes to 0, steps get slow for the last evaluation, the last batches are odd."""
    for n in range(length):
        last = n >= length - 16
        yield {
            "loss": 1.2 + 2 * math.exp(-n / 200) + draw.gauss(0, 0.02) + (2.0 if last else 0.0),
            "learning_rate": 1e-3 * (1 - n / length),
            "tokens_per_second": (3000 if last else 9000) * draw.gauss(1, 0.02),
        }


def smooth(draw: random.Random, length: int) -> Iterator[Values]:
    """No noise at all: a toy, or a loss that is averaged over many steps."""
    speed = draw.uniform(60, 300)
    for n in range(length):
        yield {"loss": 0.01 + 5 * math.exp(-n / speed), "step_seconds": 0.25}


def _growing(draw: random.Random, length: int) -> Iterator[tuple[float, float]]:
    """A curriculum of sequence lengths: length and seconds of each step, up to eight times what they were."""
    grows, first = draw.uniform(0.4, 1.0) * length, draw.uniform(0.15, 0.5)
    power, fixed = draw.choice([0.5, 1.0]), draw.uniform(0.2, 0.5)
    for n in range(length):
        share = min(1.0, first + (1 - first) * (n / grows) ** power)
        yield share, (fixed + (1 - fixed) * share) * draw.gauss(1, 0.02)


def longer_texts(draw: random.Random, length: int) -> Iterator[Values]:
    """The sequences grow, and the log tells only how long a step takes."""
    for n, (_, seconds) in enumerate(_growing(draw, length)):
        yield {"loss": 2 + 3 * math.exp(-n / 150) + draw.gauss(0, 0.03), "step_seconds": seconds}


def longer_samples(draw: random.Random, length: int) -> Iterator[Values]:
    """The same with samples a second."""
    for n, (_, seconds) in enumerate(_growing(draw, length)):
        yield {
            "loss": 2 + 3 * math.exp(-n / 150) + draw.gauss(0, 0.03),
            "batch_size": 64.0,
            "samples_per_second": 64 / seconds,
        }


def longer_by_stages(draw: random.Random, length: int) -> Iterator[Values]:
    """The sequences become twice as long a few times, and the log tells how long they are."""
    for n in range(length):
        stage = min(3, n // 200)
        yield {
            "loss": 2 + 3 * math.exp(-n / 150) + draw.gauss(0, 0.03),
            "sequence_length": 256.0 * 2**stage,
            "step_seconds": 0.3 * 2**stage * draw.gauss(1, 0.02),
        }


HEALTHY: dict[str, Shape] = {
    one.__name__: one
    for one in (cosine, restarts, reward, adversarial, discriminator, hump, evaluated, accumulated, ramped, mixed_units,
                other_unit, finished, smooth, longer_texts, longer_samples, longer_by_stages)
}  # fmt: skip


def points(
    values: Iterable[Values],
    *,
    first: int = 1,
    stride: int = 1,
    total: int | None = LENGTH,
    attempt: str = "run/0",
    **around: str,
) -> list[TrainingPoint]:
    """Records of these values at steps that rise."""
    return [
        TrainingPoint(
            at=AT + 5.0 * n,
            step=first + n * stride,
            total=total,
            values=one,
            attempt=attempt,
            surroundings=around,
        )
        for n, one in enumerate(values)
    ]


def found(*rows: list[TrainingPoint]) -> list[str]:
    """The kinds of the events in these records, in their order."""
    rules = TrainingRules()
    for row in rows:
        rules.add(row)
    return [str(one.kind) for one in rules.events]
