"""Counts how often Flight Recorders, NCCL RAS and the like gave no usable answer. Safe from any thread."""

import threading
from collections import Counter

from mldebug.capture.flight_recorder.access import AccessKind

RAS = "NCCL RAS"
WAYS = (*map(str, AccessKind), RAS)


class FailureCounts:
    """Counts questions to ranks that failed, by the way of asking (hook, worker server, FIFO, RAS …).

    The reasons are in the reports' gaps.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(WAYS, 0))

    @property
    def counts(self) -> dict[str, int]:
        """The failures counted so far, by way of asking."""
        with self._lock:
            return dict(self._counts)

    def count(self, way: str, times: int = 1) -> None:
        """Add `times` failures of this way of asking."""
        with self._lock:
            self._counts[way] += times
