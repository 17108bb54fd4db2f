"""When a kernel record was written, in unix time, although the kernel's log clock drifts from all others.

The clock of the log is not steered by NTP: after weeks `boot time + timestamp` can be off by many seconds. What is read
live bounds it: such a record is not younger than the read that found it, nor older than the last read that found no
more. Each bound that is broken corrects the clock.
"""


class KernelClock:
    """Places records on the wall clock. Call `begin` at each round, `drained` when a round has found the end."""

    def __init__(self) -> None:
        self._boot = 0.0
        self._drift = 0.0
        self._now = 0.0
        self._earliest: float | None = None  # monotonic time of the last drained round
        self._since = 0.0

    def begin(self, unix: float, monotonic: float) -> None:
        """A round of reads begins at this moment, given by both clocks."""
        self._boot = unix - monotonic
        self._now = unix
        self._since = self._boot + self._earliest if self._earliest is not None else 0.0

    def drained(self, monotonic: float) -> None:
        """The end of the log was seen by a round that began then: what comes next is newer."""
        self._earliest = monotonic

    def unix(self, seconds: float) -> float:
        """Unix time of a record with this timestamp, which was read in the present round."""
        at = self._boot + self._drift + seconds
        bounded = min(max(at, self._since), self._now)
        self._drift += bounded - at
        return bounded
