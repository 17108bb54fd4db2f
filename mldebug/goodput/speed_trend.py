"""Whether a run has become slower than it used to be, from the seconds that its steps take. Pure."""

from collections import deque
from statistics import median
from typing import NamedTuple

LEAST = 12  # looks before the newest: a minute of a steady run
KEPT = 240
SLOWER = ((2, 1.2), (4, 1.1))
"""Looks in a row, and how many times as long as usual a step has to take in each: what is much slower is believed sooner."""
RECENT = max(looks for looks, _ in SLOWER)
SLIGHTLY = min(factor for _, factor in SLOWER)


class SlowerSteps(NamedTuple):
    """The steps of a run have become slower. `since`: since when (unix or monotonic seconds, as the function that makes
    it says); `times`: how many times as long a step takes now.
    """

    since: float
    times: float


class _Pace(NamedTuple):
    """Steps between two looks. `began`: monotonic seconds of the first look; `step`: seconds that a step took."""

    began: float
    step: float


class SpeedTrend:
    """The newest step times of one run: for each look that found a new step, the mean seconds per step since the step found
    before.
    """

    def __init__(self) -> None:
        self._paces: deque[_Pace] = deque(maxlen=KEPT)
        self._last: tuple[int, float] | None = None  # the newest step, and when it was found
        self._before: _Pace | None = None  # since when it is slower, and what a step took before

    def add(self, step: int | None, at: float) -> None:
        """Add the step at which the run was found; None (the run reports no steps) is ignored. `at`: monotonic seconds."""
        if step is None:
            return
        if self._last is not None and self._last[0] < step:
            took = (at - self._last[1]) / (step - self._last[0])
            self._paces.append(_Pace(self._last[1], took))
            self._compare()
        if self._last is None or self._last[0] != step:
            self._last = step, at

    @property
    def steps(self) -> bool:
        """Whether the run has made a step since it was first found."""
        return bool(self._paces)

    @property
    def is_slower(self) -> bool:
        """Whether the newest steps are slower than usual, by `SLOWER`. False while fewer than `LEAST` earlier ones are known."""
        if len(self._paces) < LEAST + RECENT:
            return False
        newest, usual = self._newest(), self._usual()
        return any(min(newest[-looks:]) >= factor * usual for looks, factor in SLOWER)

    @property
    def slower(self) -> SlowerSteps | None:
        """Since when (monotonic seconds) the steps are slower, also after so long that this has become usual; None where they are not."""
        if self._before is None:
            return None
        return SlowerSteps(self._before.began, median(self._newest()) / self._before.step)

    def _newest(self) -> list[float]:
        return [one.step for one in list(self._paces)[-RECENT:]]

    def _usual(self) -> float:
        return median(one.step for one in list(self._paces)[:-RECENT])

    def _compare(self) -> None:
        """Note that the steps have become slower, or are as fast as before again."""
        if self._before is not None:
            if median(self._newest()) < SLIGHTLY * self._before.step:
                self._before = None
        elif self.is_slower:
            usual = self._usual()
            began = self._paces[-1].began
            for pace in reversed(self._paces):
                if pace.step < SLIGHTLY * usual:
                    break
                began = pace.began
            self._before = _Pace(began, usual)
