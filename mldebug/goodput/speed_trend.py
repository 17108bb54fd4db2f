"""Whether a run has become slower than it used to be, from the seconds that its steps take. Pure."""

from collections import deque
from statistics import median

RECENT = 5  # looks that must agree
LEAST = 12  # looks before them: a minute of a steady run
KEPT = 240
SLOWER = 1.1


class SpeedTrend:
    """The newest step times of one run: for each look that found a new step, the mean seconds per step since the step found
    before.
    """

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=KEPT)
        self._last: tuple[int, float] | None = None  # the newest step, and when it was found

    def add(self, step: int | None, at: float) -> None:
        """Add the step at which the run was found; None (the run reports no steps) is ignored. `at`: monotonic seconds."""
        if step is None:
            return
        if self._last is not None and self._last[0] < step:
            self._values.append((at - self._last[1]) / (step - self._last[0]))
        if self._last is None or self._last[0] != step:
            self._last = step, at

    @property
    def factor(self) -> float | None:
        """How many times as long as usual a step takes now: the median of the newest 5 values by that of the earlier ones; None
        with fewer than 17 values.
        """
        values = list(self._values)
        if len(values) < LEAST + RECENT:
            return None
        return median(values[-RECENT:]) / median(values[:-RECENT])

    @property
    def is_slower(self) -> bool:
        """Whether the newest steps are slower than usual: each of the last values is at least 10 % above the median of the
        earlier ones. False while there are too few.
        """
        values, factor = list(self._values), self.factor
        if factor is None or factor < SLOWER:
            return False
        usual = median(values[:-RECENT])
        return all(value >= SLOWER * usual for value in values[-RECENT:])
