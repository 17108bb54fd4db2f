"""Unix time that does not jump within an incident when the wall clock is set.

Durations are always taken from the monotonic clock. If the wall clock is set (NTP after a boot, a
person) while an incident lasts, its times go on evenly, so that its timeline stays in order; the
new time counts from the next quiet moment on.
"""

import logging
import time
from collections.abc import Callable

log = logging.getLogger("mldebug")

JUMP = 2.0  # seconds; less is the slewing of a time service


class Clock:
    """Unix time that does not jump while it is relied on. `wall` and `steady`: the system's clocks, in seconds."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._offset = wall() - steady()

    def now(self) -> float:
        """Unix time in seconds. It runs evenly from one `settle` to the next."""
        return self._steady() + self._offset

    def steady(self) -> float:
        """Seconds of a clock that never goes back; only differences have a meaning."""
        return self._steady()

    def unix(self, steady: float) -> float:
        """A moment of the monotonic clock as unix time."""
        return steady + self._offset

    def translate(self, at: float) -> float:
        """Convert `at`, unix seconds that were just read from the system's clock, into the time of this clock, which goes on where that one is set."""
        return at - (self._wall() - self.now())

    def settle(self) -> float:
        """Adopt the wall clock's present time. Call it when no running measurement depends on the old one.

        Returns by how many seconds the wall clock was set; 0.0 for differences up to `JUMP`.
        """
        offset = self._wall() - self._steady()
        jumped, self._offset = offset - self._offset, offset
        if abs(jumped) <= JUMP:
            return 0.0
        log.warning("the wall clock of this node was set %+.0f s", jumped)
        return jumped
