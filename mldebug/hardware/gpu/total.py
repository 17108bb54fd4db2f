"""One counter of a driver made monotone: it wraps, starts again with the driver, and glitches. Pure."""

import math

STILL = 21  # reads that a counter may stand at a lower value and still return: longer than a value is remembered


class Total:
    """One counter. `value` only grows.

    After a fall nothing is counted until it is known what it was. A counter that moves on below where it was, or stands
    still there for `STILL` reads, has started anew from 0. One that returns had never fallen: some reads were wrong.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._last: float = 0
        self._before: tuple[float, float | None] | None = (
            None  # as it was before a jump that cannot be
        )
        self._high: float | None = None  # where it was before it fell, until it is known why
        self._owed: float = 0  # what came since it started anew, if it did
        self._stood = 0
        self.dropped = 0  # intervals that could not be

    def add(self, told: float, most: float = math.inf, wraps_at: int | None = None) -> float:
        """Take what the driver tells now; `most` is what can have been added since. Returns the total."""
        if self.value is None:
            self.value, self._last = told, told
            return told
        if self._before is not None and told < self._last:
            self._last, self._high = self._before
        before = (self._last, self._high)
        delta = self._delta(told, wraps_at)
        self._before = None
        self._last = told
        if 0 <= delta <= most:
            self.value += delta
        else:
            self.dropped += 1
            self._before = before
        return self.value

    def grow(self, by: float) -> None:
        """Add what was counted by somebody else."""
        self.value = (self.value or 0.0) + by

    def move(self, told: float, wraps_at: int) -> None:
        """Count from the last `skip` or `move` on; the value begins at 0. It moves too fast to be watched for glitches."""
        last = self._last
        if told >= last:
            self.grow(told - last)
        else:
            self.grow(told + wraps_at - last if last > wraps_at / 2 > told else told)
        self.skip(told)

    def skip(self, told: float) -> None:
        """Take what the driver tells now for the beginning of the next interval; this one cannot be counted."""
        self._last, self._high = told, None

    def _delta(self, told: float, wraps_at: int | None) -> float:
        high, last = self._high, self._last
        if high is not None and told >= high:
            self._high = None
            return told - high
        if told < last:
            return self._fall(told, wraps_at)
        if high is None:
            return told - last
        self._stood += 1
        if told == last and self._stood < STILL:
            return 0
        self._high = None
        return self._owed + told - last

    def _fall(self, told: float, wraps_at: int | None) -> float:
        if self._high is None and wraps_at and self._last > wraps_at / 2 > told:
            return told + wraps_at - self._last
        self._high = max(self._last, self._high or 0)
        self._owed, self._stood = told, 0
        return 0
