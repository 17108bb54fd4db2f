"""A share of processor time for each client address: who sends what is dear to read waits, and nobody else does."""

import threading

WORK = 1.0  # seconds of processor time that one source may take at once
WORK_RATE = 0.2  # seconds of it that come back in each second


class WorkBudget:
    """Limits how much processor time the messages of one source (client address) may cost the agent: `most` seconds at once, of
    which `rate` seconds come back in each second. Safe from any thread.
    """

    def __init__(self, most: float = WORK, rate: float = WORK_RATE) -> None:
        self._most, self._rate = most, rate
        self._used: dict[str, tuple[float, float]] = {}  # by source: seconds, and when
        self._lock = threading.Lock()

    def allows(self, source: str, now: float) -> bool:
        """Whether one more message of this source may be looked at. `now`: monotonic seconds."""
        with self._lock:
            return self._of(source, now) < self._most

    def spend(self, source: str, seconds: float, now: float) -> None:
        """Note that messages of this source have cost so many seconds of processor time. `now`: monotonic seconds."""
        with self._lock:
            self._used = {one: self._used[one] for one in self._used if self._of(one, now) > 0.0}
            self._used[source] = self._of(source, now) + seconds, now

    def _of(self, source: str, now: float) -> float:
        used, at = self._used.get(source, (0.0, now))
        return max(0.0, used - self._rate * (now - at))
