"""Whether a run has become slower than it used to be, from the seconds that its steps take. Pure."""

from collections import deque
from statistics import median

LEAST = 12  # looks before the newest: a minute of a steady run
KEPT = 240
SLOWER = ((2, 1.2), (4, 1.1))
"""Looks in a row, and how many times as long as usual a step has to take in each: what is much slower is believed sooner."""
RECENT = max(looks for looks, _ in SLOWER)


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
    def steps(self) -> bool:
        """Whether the run has made a step since it was first found."""
        return bool(self._values)

    @property
    def is_slower(self) -> bool:
        """Whether the newest steps are slower than usual, by `SLOWER`. False while fewer than `LEAST` earlier ones are known."""
        values = list(self._values)
        if len(values) < LEAST + RECENT:
            return False
        usual = median(values[:-RECENT])
        return any(min(values[-looks:]) >= factor * usual for looks, factor in SLOWER)
