"""The time in a recording: it stands still until somebody sets it."""

from mldebug_agents.support.bundle.layout import ClockPair


class RecordedClock:
    """Both clocks of the recorded node, at one moment."""

    def __init__(self, clocks: ClockPair, at: float) -> None:
        self._clocks = clocks
        self.at = at

    def unix(self) -> float:
        """Unix time."""
        return self.at

    def monotonic(self) -> float:
        """Seconds since boot, as the kernel's log counts them."""
        return self._clocks.monotonic + self.at - self._clocks.unix
