"""One measured collective: what is printed, written and compared."""

from collections.abc import Sequence

import msgspec

from mldebug.probes.formulas import algbw, busbw
from mldebug.probes.statistics import Spread, slowest, spread


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw. In a collective all wait for the slowest, so the slow one is the one that waits least."""

    rank: int
    time_seconds: Spread
    correct: bool | None


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One op with one payload. `correct` is None where there is no value to check (barrier)."""

    op: str
    bytes: int
    ranks: int
    time_seconds: Spread
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float
    per_rank: tuple[RankTimes, ...]
    correct: bool | None


def collective(
    op: str, size: int, times: Sequence[Sequence[float]], wrong: Sequence[int | None]
) -> Collective:
    """From seconds, one row a rank, and the wrong elements that each rank counted (None: nothing to check)."""
    ranks = len(times)
    whole = spread(slowest(times))
    return Collective(
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
