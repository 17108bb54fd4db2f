"""The input of the rules of one GPU: two readings of it, the time between, and the limits."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from mldebug.hardware.gpu.readings import GpuReading
from mldebug.hardware.health.model import RuleFinding
from mldebug.hardware.health.thresholds import Thresholds

Number = TypeVar("Number", int, float)


class RuleInput(NamedTuple):
    """What a rule judges: the newest full readings of one GPU, and the limits."""

    now: GpuReading
    before: GpuReading | None
    seconds: float  # between the two; 0 where there is one only
    limits: Thresholds
    links_once_up: frozenset[int] = frozenset()  # remembered from reads before

    def both(self, read: Callable[[GpuReading], Number | None]) -> Number | None:
        """Return the smaller of a value in the last two readings, for values that only a fault makes high.

        Where only the newest reading has the value, returns that one; None where the newest reading lacks it.
        """
        now = read(self.now)
        old = read(self.before) if self.before else None
        return now if now is None or old is None else min(old, now)

    def since(self, name: str) -> float | None:
        """The growth of a counter since the reading before; None where either reading lacks it, or where it fell."""
        old = getattr(self.before, name, None)
        new = getattr(self.now, name)
        return new - old if old is not None and new is not None and new >= old else None


Rule = Callable[[RuleInput], Iterator[RuleFinding]]
