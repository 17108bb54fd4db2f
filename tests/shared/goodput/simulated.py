"""Simulated runs: steps that end together, ranks that take their time, and samples of how they wait."""

import random
from collections.abc import Callable, Sequence

from mldebug.goodput.evidence import RankShares
from mldebug.goodput.straggler import SampledStretch

RATE, SECONDS = 20, 5.0
Own = Callable[[random.Random, int], float]  # seconds that a rank takes for its part of a step


def stretch(seed: int, ranks: int, own: Own, common: float = 0.05) -> SampledStretch:
    """Samples of one stretch: in each step a rank works for its own time, and waits until the last one is done."""
    chance = random.Random(seed)
    waits = [0] * ranks
    at, until, next_sample = 0.0, SECONDS, chance.uniform(0, 1 / RATE)
    while at < until:
        mine = [own(chance, rank) for rank in range(ranks)]
        end = at + max(mine) + common
        while next_sample < min(end, until):
            for rank in range(ranks):
                waits[rank] += next_sample >= at + mine[rank]
            next_sample += 1 / RATE
        at = end
    total = round(RATE * SECONDS)
    found = (
        RankShares(rank=n, samples=total, waiting=min(1.0, count / total))
        for n, count in enumerate(waits)
    )
    return SampledStretch(at=100.0 * seed, seconds=SECONDS, ranks=tuple(found))


def noisy(base: float, spread: float = 0.04) -> Own:
    return lambda chance, _: base * chance.lognormvariate(0, spread)


def slower(own: Own, slow: Sequence[int], factor: float) -> Own:
    return lambda chance, rank: own(chance, rank) * (factor if rank in slow else 1.0)
