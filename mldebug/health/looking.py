"""What the rules of one GPU are asked about: two readings of it, the time between, and the limits."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mldebug.gpus.readings import GpuReading
from mldebug.health.components import Found
from mldebug.health.thresholds import Thresholds


class Look(NamedTuple):
    """What a rule is asked about."""

    now: GpuReading
    before: GpuReading | None
    seconds: float  # between the two; 0 where there is one only
    limits: Thresholds

    def since(self, name: str) -> float | None:
        """The growth of a counter; None without two readings, or where it began anew."""
        old = getattr(self.before, name, None)
        new = getattr(self.now, name)
        return new - old if old is not None and new is not None and new >= old else None


Rule = Callable[[Look], Iterator[Found]]
