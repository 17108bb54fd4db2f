"""Wall time for people, that stands still where the wall clock jumps while somebody relies on it.

Durations are always taken from the steady clock. Within an incident the wall clock may be set (NTP after a boot, a person):
its times go on from where it began, so its story stays in order; the new time counts from the next quiet moment on.
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
        """Unix time in seconds, which runs evenly since the last `settle`."""
        return self._steady() + self._offset

    def steady(self) -> float:
        """Monotonic seconds."""
        return self._steady()

    def unix(self, steady: float) -> float:
        """The unix time of a moment of the steady clock."""
        return steady + self._offset

    def translate(self, at: float) -> float:
        """A unix time that was just read from the wall clock, converted to this clock's time."""
        return at - (self._wall() - self.now())

    def settle(self) -> float:
        """Adopt the wall clock's present time, at a moment when no running measurement depends on the old one. Returns the jump in seconds."""
        offset = self._wall() - self._steady()
        jumped, self._offset = offset - self._offset, offset
        if abs(jumped) <= JUMP:
            return 0.0
        log.warning("the wall clock of this node was set %+.0f s", jumped)
        return jumped
