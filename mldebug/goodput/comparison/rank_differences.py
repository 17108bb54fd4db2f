"""Whether some ranks wait less than all others, by more than chance explains: the statistics behind `straggler`. Pure.

A row holds the waiting shares of all ranks, one table for each stretch of samples. What remains of a share without the mean of its rank and that of
its stretch is scatter: a hundred samples of a rank that waits a tenth of the time scatter by 0.03, and real ranks on a crowded machine
hardly more (0.035), independently from stretch to stretch. So a rank that takes a tenth longer (a difference of 0.085) is certain
after 6 to 16 stretches, and hidden after 3.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

LEAST = 0.065  # of the time: a step that is 7 % longer than it need be
QUANTILES = (
    *((60, 4.631), (30, 5.054), (20, 5.543), (15, 6.109), (12, 6.765), (10, 7.527), (8, 8.907)),
    *((7, 10.1), (6, 12.03), (5, 15.55), (4, 23.33), (3, 47.93), (2, 223.6), (1, 31830.0)),
)
"""Degrees of freedom, and the value that Student's t exceeds in one of 100,000 cases: a tenth of what is wanted, for the rank is chosen among several."""
APART = 0.5  # of that difference lies between the slow ranks and the first of the others
OFTEN = 0.8  # of the stretches have a difference of a quarter of `LEAST` at least: no single long step makes it
FEW = 4  # one of so many ranks may be slow; where more are, it is the work that differs
SURE = 4.0  # standard errors that the difference has without the shares of any one node
EACH_HALF = 3.0  # standard errors, and half of `LEAST`: in each half of a row
POSSIBLE = 1.5  # standard errors by which a difference may be larger than it seems
DOUBTFUL = 1.5  # standard errors below which it is hardly one

WaitingRow = Sequence[Mapping[int, float]]  # of each stretch the waiting share by rank


def lowest(waits: Mapping[int, float], share: float = 1.0) -> list[int]:
    """The ranks that wait clearly less than all others (by this share of a clear difference); none where no gap sets a few apart."""
    order = sorted(waits, key=lambda rank: waits[rank])
    most = max(1, len(order) // FEW)
    usual = median([waits[rank] for rank in order[1:]])
    for count in range(min(most, len(order) - 1), 0, -1):
        below, above = waits[order[count - 1]], waits[order[count]]
        difference = usual - fmean(waits[rank] for rank in order[:count])
        if difference >= share * LEAST and above - below >= share * APART * difference:
            return sorted(order[:count])
    return []


def is_sure(row: WaitingRow, low: Sequence[int], rest: Sequence[int]) -> bool:
    """Whether the ranks `low` together, and each of them alone, wait so much less than `rest` that chance does not explain it."""
    scatter = _Scatter(row, low, rest)
    return all(
        scatter.shows(some, scatter.quantile, LEAST) and _is_frequent(scatter.differences(some))
        for some in _together_and_alone(low)
    )


def is_shown(row: WaitingRow, low: Sequence[int], rest: Sequence[int]) -> bool:
    """Whether half of a row shows what the whole has: less is enough of it."""
    scatter = _Scatter(row, low, rest)
    return all(scatter.shows(some, EACH_HALF, LEAST / 2) for some in _together_and_alone(low))


def is_apart(row: WaitingRow, low: Sequence[int], rest: Sequence[int]) -> bool:
    """Whether each of these ranks waits clearly less than all others of `rest`."""
    waits = {rank: fmean(one[rank] for one in row) for rank in (*low, *rest)}
    highest, usual = max(waits[rank] for rank in low), median(waits[rank] for rank in rest)
    gap = min(waits[rank] for rank in rest) - highest
    apart = usual - highest >= LEAST and gap >= APART * (usual - highest)
    return apart and _Scatter(row, low, rest).shows(low, SURE, LEAST)


def may_be_shown(row: WaitingRow, ranks: Sequence[int]) -> bool:
    """Whether the rank that waits least may, after more stretches, turn out to be slow: it is likely by now that it waits less at all, and not
    yet unlikely that it is by `LEAST`.
    """
    first = min(ranks, key=lambda rank: sum(one[rank] for one in row))
    scatter = _Scatter(row, [first], [rank for rank in ranks if rank != first])
    difference, error = fmean(scatter.differences([first])), scatter.error(1)
    return difference >= DOUBTFUL * error and difference + POSSIBLE * error >= LEAST


class _Scatter:
    """How much the shares of a row scatter, and the differences between the few ranks `low` and the others in each of its stretches."""

    def __init__(self, row: WaitingRow, low: Sequence[int], rest: Sequence[int]) -> None:
        self._row, self._others, count = row, len(rest), len(row)
        self._rest = [fmean(one[rank] for rank in rest) for one in row]
        ranks = [*low, *rest]
        of_rank = {rank: fmean(one[rank] for one in row) for rank in ranks}
        whole = fmean(of_rank.values())
        squares = 0.0
        for one in row:
            mean = fmean(one[rank] for rank in ranks)
            squares += sum((one[rank] - mean - of_rank[rank] + whole) ** 2 for rank in ranks)
        freedom = (len(ranks) - 1) * (count - 1)
        self._variance = squares / freedom / count
        self.quantile = next(value for least, value in QUANTILES if freedom >= least)

    def error(self, count: int) -> float:
        """The standard error of the difference of so many ranks."""
        return math.sqrt(self._variance * (1 / count + 1 / self._others))

    def differences(self, some: Sequence[int]) -> list[float]:
        """How much more the others wait than these, in each stretch."""
        pairs = zip(self._row, self._rest, strict=True)
        return [rest - fmean(one[rank] for rank in some) for one, rest in pairs]

    def shows(self, some: Sequence[int], errors: float, least: float) -> bool:
        """Whether the difference of these ranks is `least`, and so many standard errors, at the least."""
        return fmean(self.differences(some)) >= max(least, errors * self.error(len(some)))


def _is_frequent(differences: Sequence[float]) -> bool:
    return sum(one >= LEAST / 4 for one in differences) >= OFTEN * len(differences)


def _together_and_alone(low: Sequence[int]) -> list[Sequence[int]]:
    return [low, *([rank] for rank in low if len(low) > 1)]
