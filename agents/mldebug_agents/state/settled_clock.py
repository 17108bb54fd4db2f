"""Whether this node's clock may be trusted with the removal of what is old.

A clock that is set ahead by mistake makes everything old at once, and what was removed does not come back when it is set right.
"""

import time
from collections.abc import Callable

SETTLED = 86_400.0  # seconds for which it must have gone on without being set
STEP = (
    60.0  # seconds between two looks that it differs from a steady clock, from which on it was set
)


class SettledClock:
    """Looks at the wall clock beside a steady one. `wall`, `steady`: unix time and monotonic seconds."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._offset, self._since = wall() - steady(), steady()

    def settled(self) -> bool:
        """Whether the clock was not set for a day, as far as this process knows: never on its first day."""
        steady = self._steady()
        offset = self._wall() - steady
        if abs(offset - self._offset) > STEP:
            self._since = steady
        self._offset = offset
        return steady - self._since >= SETTLED
