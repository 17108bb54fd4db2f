"""What a handful of times come to."""

import math
from collections.abc import Sequence
from statistics import median

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of some values, in their unit. `p99` is the nearest rank: the largest of fewer than 100."""

    min: float
    median: float
    max: float
    p99: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    ordered = sorted(values)
    nearest = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return Spread(min=ordered[0], median=median(ordered), max=ordered[-1], p99=nearest)


def slowest(times: Sequence[Sequence[float]]) -> list[float]:
    """Of each repetition the time of the rank that took longest: an operation is done when all are. One row a rank."""
    return [max(one) for one in zip(*times, strict=True)]
