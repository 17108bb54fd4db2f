"""Does a process write a checkpoint? Told by its written bytes over the last seconds: a log never grows that fast."""

from collections import deque

WINDOW = 10.0
"""Seconds over which writes are averaged: a checkpoint is a few large ones, with fsync between them."""
FAST = 1024.0 * 1024.0  # bytes a second; logs, tensorboard and stdout stay far below


class WriteRate:
    """The written bytes of one process, reading by reading."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # of the last seconds, oldest first

    def take(self, at: float, written: int) -> float | None:
        """Bytes a second since the oldest reading; None without an earlier one, or where 0 says that nobody may read."""
        if written <= 0:
            return None
        if self._seen and written < self._seen[-1][1]:
            self._seen.clear()  # another process
        rate = self._rate(at, written)
        self._seen.append((at, written))
        while self._seen[-1][0] - self._seen[0][0] > WINDOW and len(self._seen) > 2:
            self._seen.popleft()
        return rate

    def _rate(self, at: float, written: int) -> float | None:
        if not self._seen or at <= self._seen[0][0]:
            return None
        since, before = self._seen[0]
        return (written - before) / (at - since)
