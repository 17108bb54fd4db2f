"""What two answers of NCCL RAS say of movement, and what one says of ranks that are behind.

Counts are launches by the host: a count that grew is movement, equal counts prove nothing of the GPUs. Work that is
replayed from a CUDA graph is not counted at all.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations

import msgspec

from mldebug.capture.nccl_ras.communicators import lowest
from mldebug.core.model import NcclCommunicator, NcclLevel, NcclRank, NcclRas


class LaggingRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of one communicator that have launched the fewest calls, of every function in which its ranks differ."""

    function: str  # the one in which they lack the most
    count: int
    most: int
    ranks: tuple[NcclRank, ...]  # those that the answer lists; `many` may be more
    many: int


def moved(before: NcclRas, after: NcclRas) -> bool | None:
    """Whether any rank has launched a collective between two answers of NCCL RAS; None where they cannot be compared."""
    earlier = {communicator.key: communicator for communicator in before.communicators}
    changes = [
        old.launched != new.launched
        for new in after.communicators
        if (old := earlier.get(new.key)) is not None and _comparable(old, new)
    ]
    return any(changes) if changes else None


def _comparable(old: NcclCommunicator, new: NcclCommunicator) -> bool:
    """The sums are of the same ranks."""
    if old.launched is None or new.launched is None or old.answered != new.answered:
        return False
    gone = [{one.rank for one in communicator.absent} for communicator in (old, new)]
    complete = all(
        len(communicator.absent) == communicator.absent_count for communicator in (old, new)
    )
    return gone[0] == gone[1] and complete


def behind(communicator: NcclCommunicator) -> LaggingRanks | None:
    """The ranks that have launched fewer calls than others; None where none has, or where different ranks lack calls of different
    functions.
    """
    last = lowest(communicator.levels)
    if not last or len(laggards := {_last(communicator, name) for name in last}) != 1:
        return None
    if len(last) > 1 and not all(_is_reported(communicator, name) for name in last):
        return None
    function = max(last, key=lambda name: _most(communicator, name) - last[name])
    ranks = tuple(rank for rank in communicator.ranks if rank.rank in next(iter(laggards)))
    level = next(level for level in communicator.levels if _is(level, function, last[function]))
    if len(ranks) > level.ranks or level.ranks >= communicator.answered:
        return None
    most = _most(communicator, function)
    return LaggingRanks(
        function=function, count=level.count, most=most, ranks=ranks, many=level.ranks
    )


def crossed(
    communicators: Iterable[NcclCommunicator],
) -> tuple[NcclCommunicator, NcclCommunicator] | None:
    """Two communicators that share processes, of which each waits for ranks that wait in the other, so that neither can end. None
    without such a pair.
    """
    late = [
        (communicator, found.ranks)
        for communicator in communicators
        if (found := behind(communicator)) and _are_reported(found)
    ]
    for (one, lack), (other, lacks) in combinations(late, 2):
        first, second = _places(lack) - _places(lacks), _places(lacks) - _places(lack)
        if first & _places(other.ranks) and second & _places(one.ranks):
            return one, other
    return None


def _are_reported(found: LaggingRanks) -> bool:
    return len(found.ranks) == found.many


def _places(rows: Iterable[NcclRank]) -> set[tuple[str, int]]:
    return {(row.host, row.pid) for row in rows if row.pid is not None}


def differs(communicator: NcclCommunicator) -> tuple[NcclLevel, ...]:
    """For calls out of step (different ranks lack calls of different functions): the highest launch count of each such function.
    Empty where ranks are equal, or some are just behind.
    """
    if not communicator.levels or behind(communicator) is not None:
        return ()
    return tuple(_highest(communicator.levels))


def _highest(levels: tuple[NcclLevel, ...]) -> Iterator[NcclLevel]:
    for function in sorted({level.function for level in levels}):
        yield max(
            (level for level in levels if level.function == function), key=lambda one: one.count
        )


def at_level(communicator: NcclCommunicator, level: NcclLevel) -> tuple[NcclRank, ...]:
    """The ranks, of those that the answer lists, whose launch count of the level's function is that of the level."""
    return tuple(
        rank for rank in communicator.ranks if rank.counts.get(level.function, 0) == level.count
    )


def brief(answer: NcclRas) -> NcclRas:
    """The answer without its rank rows and addresses: what `moved` needs."""
    return msgspec.structs.replace(
        answer,
        own=(),
        communicators=tuple(
            msgspec.structs.replace(communicator, ranks=()) for communicator in answer.communicators
        ),
    )


def _last(communicator: NcclCommunicator, function: str) -> frozenset[int]:
    least = lowest(communicator.levels)[function]
    return frozenset(
        rank.rank for rank in communicator.ranks if rank.counts.get(function, 0) == least
    )


def _is_reported(communicator: NcclCommunicator, function: str) -> bool:
    """Does the answer list all ranks that have launched the fewest of this function?"""
    least = lowest(communicator.levels)[function]
    level = next(level for level in communicator.levels if _is(level, function, least))
    return len(_last(communicator, function)) == level.ranks


def _most(communicator: NcclCommunicator, function: str) -> int:
    return max(level.count for level in communicator.levels if level.function == function)


def _is(level: NcclLevel, function: str, count: int) -> bool:
    return (level.function, level.count) == (function, count)
