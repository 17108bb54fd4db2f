"""Collects the sampling periods ("stretches") of a run until they suffice to compare its ranks (then they are a "row"), and
compares two rows before a rank is called slow. Pure.
"""

from mldebug.goodput.recorded_waits import find_late_ranks, needs_more_records
from mldebug.goodput.speed_trend import SlowerSteps
from mldebug.goodput.straggler import (
    STRETCHES,
    SampledStretch,
    Slowness,
    agreed,
    find_slow_ranks,
    needs_more,
)
from mldebug.goodput.waiting_hosts import needs_readings, with_gpu_cause

CLOSELY = 4  # rows of an attempt that go on for a rank that only nearly stands apart: a run that stays healthy costs little after them


class SampleRows:
    """The sampling periods of one attempt of a run, in the order in which they were taken. After 3 to 8 of them the ranks
    are compared; a rank that is slow for the first time must be found slow again by as many new ones.

    `least`: periods to take though the first shows no rank that waits less than the others.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._compared = 0  # rows
        self._row: list[SampledStretch] = []
        self._first: Slowness | None = None  # a row with a slow rank, to be confirmed by a second

    def add(
        self, stretch: SampledStretch, *, known: bool, slower: SlowerSteps | None = None
    ) -> Slowness | None:
        """Add the newest sampling period. Returns the comparison of the ranks, or None where more samples are wanted soon.

        `known`: the run has been found slow before, so that a slow rank needs no second comparison. `slower`: since when (unix time) its
        steps take longer than they used to.
        """
        self._row.append(stretch)
        least = STRETCHES if slower is not None else self._least
        is_whole = 1 < len(stretch.ranks) >= stretch.world_size
        if (
            (is_whole and len(self._row) < least)
            or needs_more(self._row, closely=self._compared < CLOSELY)
            or needs_more_records(self._row)
            or (slower is not None and needs_readings(self._row))
        ):
            return None
        row, self._row, self._compared = self._row, [], self._compared + 1
        found = find_slow_ranks(row)
        if slower is not None:
            found = with_gpu_cause(found, slower, stretch.world_size)
        found = find_late_ranks(found, row, slower)
        first, self._first = self._first, None
        if first is not None:
            return agreed(first, found)
        if found.ranks and not known:
            self._first = found
            return None
        return found

    def drop(self) -> None:
        """Forget all sampling periods, because they cannot be compared with later ones."""
        self._row, self._first = [], None
