"""The growth of a value that jumps up and down.

A leak raises its lows; an evaluation or a checkpoint does not.

The time is cut into equal parts, and the lowest value of each part counts. The slope is the median
of the slopes between all pairs of these lows (Theil-Sen), so up to a third of them may be odd.
"""

import statistics
from collections import deque
from itertools import combinations, pairwise

PARTS = 10
KEPT = 3600.0  # seconds
RECENT = 600.0
LEAST = 120.0  # seconds watched before anything is said
SPACING = 5.0  # seconds between two readings that are kept
STEADY = 0.6  # share of the parts that must lie above the one before
NOISE = 0.005  # of the limit: what rises by less in the time that was watched does not grow


class Trend:
    """Growth of one quantity over the last hour. Times are monotonic seconds."""

    def __init__(self, least: float = LEAST, spacing: float = SPACING) -> None:
        self._least = least
        self._spacing = spacing
        self._readings: deque[tuple[float, float]] = deque()

    def add(self, at: float, value: float) -> None:
        """Add a value read at time `at` (seconds); ignored where the last one is less than the spacing ago."""
        if self._readings and at - self._readings[-1][0] < self._spacing:
            return
        self._readings.append((at, value))
        while at - self._readings[0][0] > KEPT:
            self._readings.popleft()

    def growth(self, noise: float = 0.0) -> float | None:
        """Growth per second in the last ten minutes; 0 unless the whole hour shows growth as well.

        None before there are enough readings.

        `noise`: growth, in the value's unit, up to which the value is taken to stand still.
        """
        if not self._readings or self._readings[-1][0] - self._readings[0][0] < self._least or len(self._readings) < PARTS:  # fmt: skip
            return None
        end = self._readings[-1][0]
        recent = [one for one in self._readings if end - one[0] <= RECENT]
        slopes = [_slope(_lows(some), noise) for some in (list(self._readings), recent)]
        return 0.0 if min(slopes) <= 0 else slopes[1]


def _lows(readings: list[tuple[float, float]]) -> list[tuple[float, float]]:
    begin, end = readings[0][0], readings[-1][0]
    width = max((end - begin) / PARTS, 1e-9)
    parts: dict[int, tuple[float, float]] = {}
    for at, value in readings:
        part = min(PARTS - 1, int((at - begin) / width))
        if part not in parts or value < parts[part][1]:
            parts[part] = at, value
    return [parts[part] for part in sorted(parts)]


def _slope(lows: list[tuple[float, float]], noise: float) -> float:
    """0 for what does not rise steadily, or too little."""
    if len(lows) < 4:
        return 0.0
    rises = sum(after[1] > before[1] for before, after in pairwise(lows))
    if rises < STEADY * (len(lows) - 1) or lows[-1][1] - lows[0][1] < noise:
        return 0.0
    pairs = combinations(lows, 2)
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0])
