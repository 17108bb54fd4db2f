"""One counter of a GPU driver: made monotone (`Total`), and the unit in which it counts time (`TimeUnit`). Pure."""

import math
from collections.abc import Iterable

STILL = 21  # reads that a counter may stand at a lower value and still return: longer than a value is remembered
NANOSECOND, MICROSECOND = 1e-9, 1e-6
SLACK = 1.25  # two reads are not as far apart as the driver's own clock says
IDLE = "low_utilization"
NEARLY_ALL = 0.8  # of the time
PROOFS = 10  # intervals in which a counter of low utilization moved like the clock
MANY = 60  # intervals in which something moved, and nothing faster than the clock …
OFTEN = 20  # … and so many in which something took half of the time at least
HALF = 0.5


class Total:
    """A total made from a driver's counter, which may fall or jump; `value` only grows.

    After a fall nothing is counted until the reason is known. A counter that goes on below its old
    value, or stands still there for `STILL` readings, has started anew from 0. If it returns to the
    old value, it had never fallen: some readings were wrong.
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

    def add(self, value: float, most: float = math.inf, wraps_at: int | None = None) -> float:
        """Add the driver's newest value and return the total.

        `most`: the largest growth that is possible since the last value; `wraps_at`: the value at
        which the counter starts again from 0.
        """
        if self.value is None:
            self.value, self._last = value, value
            return value
        if self._before is not None and value < self._last:
            self._last, self._high = self._before
        before = (self._last, self._high)
        delta = self._delta(value, wraps_at)
        self._before = None
        self._last = value
        if 0 <= delta <= most:
            self.value += delta
        else:
            self.dropped += 1
            self._before = before
        return self.value

    def grow(self, by: float) -> None:
        """Add to the total an amount that was not read from the counter."""
        self.value = (self.value or 0.0) + by

    def move(self, value: float, wraps_at: int) -> None:
        """Add the counter's growth since the last `skip` or `move`, without checking it; for values that change too fast for the check."""
        last = self._last
        if value >= last:
            self.grow(value - last)
        else:
            self.grow(value + wraps_at - last if last > wraps_at / 2 > value else value)
        self.skip(value)

    def skip(self, value: float) -> None:
        """Let the next interval begin with this value; the interval that ends here is not counted."""
        self._last, self._high = value, None

    def _delta(self, value: float, wraps_at: int | None) -> float:
        high, last = self._high, self._last
        if high is not None and value >= high:
            self._high = None
            return value - high
        if value < last:
            return self._fall(value, wraps_at)
        if high is None:
            return value - last
        self._stood += 1
        if value == last and self._stood < STILL:
            return 0
        self._high = None
        return self._owed + value - last

    def _fall(self, value: float, wraps_at: int | None) -> float:
        if self._high is None and wraps_at and self._last > wraps_at / 2 > value:
            return value + wraps_at - self._last
        self._high = max(self._last, self._high or 0)
        self._owed, self._stood = value, 0
        return 0


class TimeUnit:
    """The unit of the clock event counters, on which drivers differ: found from how the counters move, or not known.

    No counter can grow faster than time. One that is too fast for microseconds counts nanoseconds:
    one interval proves it. One that is slow enough for microseconds proves little, as nanoseconds
    of a GPU that is seldom throttled are so, too. That needs an idle GPU, whose counter of low
    utilization moves like the clock, or many intervals in which nothing was faster.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None  # of one tick
        self._intervals = self._idle = self._busy = 0

    def see(self, moved: Iterable[tuple[str, int]], seconds: float) -> None:
        """Learn the unit from one interval of `seconds`.

        `moved`: (counter name, growth in ticks).
        """
        ticks = [(name, one) for name, one in moved if one > 0]
        if self.seconds == NANOSECOND or seconds <= 0 or not ticks:
            return
        shares = [(name, one * MICROSECOND / seconds) for name, one in ticks]
        if any(_too_fast(share) for _, share in shares):
            self.seconds = NANOSECOND
            return
        fitting = [(name, share) for name, share in shares if share <= SLACK]
        self._intervals += bool(fitting)
        self._busy += any(share >= HALF for _, share in fitting)
        self._idle += any(name == IDLE and share >= NEARLY_ALL for name, share in fitting)
        if self._idle >= PROOFS or (self._intervals >= MANY and self._busy >= OFTEN):
            self.seconds = MICROSECOND


def _too_fast(share: float) -> bool:
    """For microseconds; what is too fast for nanoseconds as well is a glitch, which proves nothing."""
    return SLACK < share <= SLACK * MICROSECOND / NANOSECOND
