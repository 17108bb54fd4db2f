"""The unit of the clock event counters, which drivers disagree about: proved by their own movements, or unknown. Pure.

No counter can grow faster than time. What is too fast for microseconds is nanoseconds: one movement proves it. That
something is slow enough for microseconds proves little: nanoseconds of a GPU that is seldom throttled are so, too. It
takes an idle GPU, whose counter of low utilization moves like the clock, or many intervals in which nothing was faster.
"""

from collections.abc import Iterable

NANOSECOND, MICROSECOND = 1e-9, 1e-6
SLACK = 1.25  # two reads are not as far apart as the driver's own clock says
IDLE = "low_utilization"
NEARLY_ALL = 0.8  # of the time
PROOFS = 10  # intervals in which a counter of low utilization moved like the clock
MANY = 60  # intervals in which something moved, and nothing faster than the clock …
OFTEN = 20  # … and so many in which something took half of the time at least
HALF = 0.5


class Unit:
    """Learns from every interval."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # of one tick
        self._intervals = self._idle = self._busy = 0

    def see(self, moved: Iterable[tuple[str, int]], seconds: float) -> None:
        """Take one interval between two reads: by how much each counter moved, by name."""
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
