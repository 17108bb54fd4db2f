"""Results of measured collectives: times of the ranks, their spread, and bandwidths by the factors that nccl-tests publishes.

`bytes` is what nccl-tests calls size: the larger of the send and receive buffers of one rank. The
algorithm bandwidth is bytes / time; the bus bandwidth multiplies it by a factor of the number of
ranks n, so that it can be compared with the links whatever n is. Source:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import math
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
    "barrier": lambda n: 0.0,  # moves no payload: only its time counts
}


OPS = tuple(FACTORS)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Smallest, median and largest of some values.

    `p99`: by nearest rank, so of fewer than 100 values the largest.
    """

    min: float
    median: float
    max: float
    p99: float


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds as one rank measured them.

    In a collective all ranks wait for the slowest one, which itself waits least and so has the
    shortest times.
    """

    rank: int
    time_seconds: Spread
    correct: bool | None


class CollectiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one collective operation with one payload.

    `correct` is None where there are no values to check (barrier).
    """

    op: str
    bytes: int
    ranks: int
    time_seconds: Spread
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float
    per_rank: tuple[RankTimes, ...]
    correct: bool | None


def collective_result(
    op: str, size: int, times: Sequence[Sequence[float]], wrong: Sequence[int | None]
) -> CollectiveResult:
    """The result of an operation on `size` bytes.

    `times`: seconds, a row for each rank; `wrong`: wrong elements by rank (None: nothing to check).
    """
    ranks = len(times)
    whole = spread(slowest(times))
    return CollectiveResult(
        op=op,
        bytes=size,
        ranks=ranks,
        time_seconds=whole,
        algbw_bytes_per_second=algbw(size, whole.median),
        busbw_bytes_per_second=busbw(op, size, whole.median, ranks),
        per_rank=tuple(
            RankTimes(rank=rank, time_seconds=spread(row), correct=_right(bad))
            for rank, (row, bad) in enumerate(zip(times, wrong, strict=True))
        ),
        correct=_right(_sum(wrong)),
    )


def _right(wrong: int | None) -> bool | None:
    return None if wrong is None else wrong == 0


def _sum(wrong: Sequence[int | None]) -> int | None:
    known = [one for one in wrong if one is not None]
    return sum(known) if known else None


def algbw(size: int, seconds: float) -> float:
    """Algorithm bandwidth in bytes per second, from bytes and seconds."""
    return size / seconds if seconds > 0 else 0.0


def busbw(op: str, size: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth in bytes per second: the algorithm bandwidth times the factor of the operation and the number of ranks."""
    return algbw(size, seconds) * FACTORS[op](ranks)


def spread(values: Sequence[float]) -> Spread:
    """Lowest, median and highest of these values, of which there must be at least one."""
    ordered = sorted(values)
    nearest = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return Spread(min=ordered[0], median=median(ordered), max=ordered[-1], p99=nearest)


def slowest(times: Sequence[Sequence[float]]) -> list[float]:
    """For each repetition the seconds of the slowest rank, as an operation is done when all ranks are.

    `times`: a row for each rank.
    """
    return [max(one) for one in zip(*times, strict=True)]
