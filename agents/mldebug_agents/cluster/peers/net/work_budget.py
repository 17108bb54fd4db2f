"""A share of processor time for each client address: who sends what is dear to read waits, and nobody else does."""

import threading
from collections.abc import Callable

WORK = 1.0  # seconds of processor time that one source may take at once
WORK_RATE = 0.2  # seconds of it that come back in each second
MANY, MOST_SHARES = 256, 2.0
"""From so many nodes on, behind one address or in one network of IPv6, they have more than a share; so many shares at most. Of 1,024
nodes with one run each message takes 2.5 ms while it stalls.
"""
LEAST_KEPT = 64  # sources that are remembered without a look at which have nothing left to pay


class WorkBudget:
    """Limits how much processor time the messages of one source (client address) may cost the agent: `most` seconds at once, of
    which `rate` seconds come back in each second, and twice that for a source with many nodes. Safe from any thread.
    """

    def __init__(
        self,
        most: float = WORK,
        rate: float = WORK_RATE,
        nodes: Callable[[str], int] = lambda _: 1,
    ) -> None:
        """`nodes`: how many nodes have announced themselves from a source; called from any thread."""
        self._most, self._rate, self._nodes = most, rate, nodes
        self._used: dict[str, tuple[float, float]] = {}  # by source: seconds, and when
        self._tidy_at = LEAST_KEPT
        self._lock = threading.Lock()

    def allows(self, source: str, now: float) -> bool:
        """Whether one more message of this source may be looked at. `now`: monotonic seconds."""
        with self._lock:
            return self._of(source, now) < self._most * self._shares(source)

    def spend(self, source: str, seconds: float, now: float) -> None:
        """Note that messages of this source have cost so many seconds of processor time. `now`: monotonic seconds."""
        with self._lock:
            if len(self._used) >= self._tidy_at:
                self._used = {
                    one: self._used[one] for one in self._used if self._of(one, now) > 0.0
                }
                self._tidy_at = max(LEAST_KEPT, 2 * len(self._used))
            self._used[source] = self._of(source, now) + seconds, now

    def _of(self, source: str, now: float) -> float:
        used, at = self._used.get(source, (0.0, now))
        return max(0.0, used - self._rate * self._shares(source) * (now - at))

    def _shares(self, source: str) -> float:
        return min(MOST_SHARES, max(1.0, self._nodes(source) / MANY))
