"""Collects the sampling periods ("stretches") of a run until they suffice to compare its ranks; then they are a "row". Pure.

A row is a sequential test: it goes on while a rank may turn out to be slow, and ends as soon as one is (and both halves of the row show
it), or none can be any more.
"""

from collections.abc import Sequence

import msgspec

from mldebug.goodput.recorded_waits import find_late_ranks, is_confirmed_late, needs_more_records
from mldebug.goodput.speed_trend import SlowerSteps
from mldebug.goodput.straggler import (
    MOST,
    STRETCHES,
    SampledStretch,
    Slowness,
    agreed,
    find_slow_ranks,
    is_confirmed,
    needs_more,
)
from mldebug.goodput.waiting_hosts import needs_readings, with_gpu_cause

CLOSELY = 4  # rows of an attempt that go on for a rank that only nearly stands apart: a run that stays healthy costs little after them
ONE_MORE = 12  # rows, an hour, after which one more may go on beyond `MOST` for a rank that was not named in the end
REMEMBERED = 3  # single stretches of the rows before, in which a rank may have begun to stand apart
UNCONFIRMED = "it is not the same rank all the time"


class SampleRows:
    """The sampling periods of one attempt of a run, in the order in which they were taken. A rank that is slow for the first time is
    named after 6 to 16 of them.

    `least`: periods to take though the first shows no rank that waits less than the others.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._compared = 0  # rows
        self._in_vain = 0  # of them, those that went on beyond `MOST`
        self._row: list[SampledStretch] = []
        self._past: list[SampledStretch] = []  # of rows that ended after one stretch
        self._first: Slowness | None = (
            None  # what began on a GPU, by a row: another row has to confirm it
        )

    @property
    def is_begun(self) -> bool:
        """Whether more samples are wanted to compare the ranks."""
        return bool(self._row) or self._first is not None

    def add(
        self, stretch: SampledStretch, *, known: bool, slower: SlowerSteps | None = None, alike: bool = False
    ) -> Slowness | None:  # fmt: skip
        """Add the newest sampling period. Returns the comparison of the ranks, or None where more samples are wanted soon.

        `known`: the run has been found slow before, so that a slow rank needs no confirmation. `slower`: since when (unix time) its
        steps take longer than they used to. `alike`: a glance at the ranks has just shown that none differs from the others (`blocked_calls`).
        """
        self._row.append(stretch)
        found = Slowness()
        for row in [self._row, self._row[-MOST:]][: 1 + (len(self._row) > MOST)]:
            found = _judged(row, slower)
            if found.ranks and (known or _is_confirmed(row, found)):
                return self._end(found)
        if found.ranks and found.slower:
            if self._first is not None:
                return self._end(agreed(self._first, found))
            self._first, self._row = found, []
            return None
        if self._goes_on(slower) and not (alike and slower is None and len(self._row) == 1):
            return None
        unclear = msgspec.structs.replace(found, ranks=(), why_nobody=UNCONFIRMED)
        return self._end(unclear if found.ranks else found)

    def drop(self) -> None:
        """Forget all sampling periods, because they cannot be compared with later ones."""
        self._row, self._past, self._first = [], [], None

    def _goes_on(self, slower: SlowerSteps | None) -> bool:
        row = self._row
        least = STRETCHES if slower is not None else self._least
        if 1 < len(row[-1].ranks) >= row[-1].world_size and len(row) < least:
            return True
        if len(row) >= MOST and self._in_vain >= CLOSELY + self._compared // ONE_MORE:
            return False
        closely = self._compared < CLOSELY
        if needs_more(row, closely=closely) or needs_more_records(row):
            return True
        if len(row) < STRETCHES <= len(self._past) and needs_more([*self._past, *row]):
            return True
        return slower is not None and needs_readings(row)

    def _end(self, found: Slowness) -> Slowness:
        row, self._row, self._compared, self._first = self._row, [], self._compared + 1, None
        self._in_vain += len(row) > MOST and not found.ranks
        self._past = [*self._past, *row][-REMEMBERED:] if len(row) == 1 else []
        return found


def _judged(row: Sequence[SampledStretch], slower: SlowerSteps | None) -> Slowness:
    """Who is slow by all evidence of a row."""
    found = find_slow_ranks(row)
    if slower is not None:
        found = with_gpu_cause(found, slower, row[-1].world_size)
    return find_late_ranks(found, row, slower)


def _is_confirmed(row: Sequence[SampledStretch], found: Slowness) -> bool:
    """Whether both halves of the row show the ranks that stacks or records of all of it show."""
    if found.slower:
        return False
    return is_confirmed_late(row, found) if found.recorded else is_confirmed(row, found)
