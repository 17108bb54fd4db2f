"""Whether a process writes a checkpoint, from its written bytes over the last seconds: a log never grows that fast."""

from collections import deque

WINDOW = 10.0
"""Seconds over which writes are averaged: a checkpoint is a few large ones, with fsync between them."""
FAST = 1024.0 * 1024.0  # bytes a second; logs, tensorboard and stdout stay far below


class WriteRate:
    """The rate at which one process writes (bytes per second), from readings of its counter of written bytes."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()  # of the last seconds, oldest first

    def take(self, at: float, written: int) -> float | None:
        """Add a reading: the time `at` in seconds and the counter in bytes. Returns bytes per second since the oldest reading
        kept (about 10 s back); None at the first reading, after the counter fell, or for 0, which may mean "not readable".
        """
        if written <= 0:
            return None
        if self._readings and written < self._readings[-1][1]:
            self._readings.clear()  # another process
        rate = self._rate(at, written)
        self._readings.append((at, written))
        while self._readings[-1][0] - self._readings[0][0] > WINDOW and len(self._readings) > 2:
            self._readings.popleft()
        return rate

    def _rate(self, at: float, written: int) -> float | None:
        if not self._readings or at <= self._readings[0][0]:
            return None
        since, before = self._readings[0]
        return (written - before) / (at - since)
