"""Sums up one NCCL communicator: launch counts over all ranks, and the few ranks that are worth storing."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from mldebug.core.model import NcclAbsent, NcclCommunicator, NcclLevel, NcclRank, NcclRas

MAX_LEVELS = 64  # of one communicator
MAX_NAMED = 64  # ranks of one level, and absent ones, that are kept
MAX_KEPT = 64  # communicators in evidence
MAX_ROWS = 4096  # ranks in evidence


def communicator(
    key: str, size: int, ranks: Sequence[NcclRank], absent: Sequence[NcclAbsent]
) -> NcclCommunicator:
    """A communicator from the rows of the ranks that answered, each with its launch counts by function, and of those that did not
    (`absent`).
    """
    totals = [sum(rank.counts.values()) for rank in ranks]
    return NcclCommunicator(
        key=key,
        size=size,
        answered=len(ranks),
        launched=sum(totals),
        furthest=max(totals, default=0),
        ranks=tuple(ranks),
        absent=tuple(absent),
        absent_count=len(absent),
        levels=tuple(levels(ranks))[:MAX_LEVELS],
    )


def levels(ranks: Sequence[NcclRank]) -> Iterator[NcclLevel]:
    """For each function whose launch counts differ between ranks: how many ranks have which count, the lowest count first."""
    for function in sorted({name for rank in ranks for name in rank.counts}):
        found = Counter(rank.counts.get(function, 0) for rank in ranks)
        if len(found) > 1:
            for count, many in sorted(found.items()):
                yield NcclLevel(function=function, count=count, ranks=many)


def few(answer: NcclRas, pids: Collection[int]) -> NcclRas:
    """The answer cut down for storing. A large communicator keeps the processes with these pids, the ranks furthest behind, and
    absent ones.

    Communicators whose ranks differ or are absent come first, then large ones; what is left out is counted.
    """
    ordered = sorted(
        answer.communicators, key=lambda one: (not (one.levels or one.absent), -one.size)
    )
    kept: list[NcclCommunicator] = []
    rows = MAX_ROWS
    for one in ordered[:MAX_KEPT]:
        kept.append(_few_ranks(one, pids, rows))
        rows -= len(kept[-1].ranks)
    left_out = answer.left_out + len(ordered) - len(kept)
    return msgspec.structs.replace(answer, communicators=tuple(kept), left_out=left_out)


def _few_ranks(
    communicator: NcclCommunicator, pids: Collection[int], rows: int
) -> NcclCommunicator:
    wanted = {rank.rank for rank in communicator.ranks if rank.pid in pids} | _ends(communicator)
    ranks = (
        communicator.ranks
        if len(communicator.ranks) <= MAX_NAMED
        else [r for r in communicator.ranks if r.rank in wanted]
    )
    return msgspec.structs.replace(
        communicator, ranks=tuple(ranks)[: max(0, rows)], absent=communicator.absent[:MAX_NAMED]
    )


def _ends(communicator: NcclCommunicator) -> set[int]:
    """Those with the fewest of a function."""
    last = lowest(communicator.levels)
    named: set[int] = set()
    for function, count in last.items():
        behind = (rank.rank for rank in communicator.ranks if rank.counts.get(function, 0) == count)
        named.update(list(behind)[:MAX_NAMED])
    return named


def lowest(found: Iterable[NcclLevel]) -> dict[str, int]:
    """For each NCCL function in `found`, how often the rank has launched it that did so least."""
    fewest: dict[str, int] = {}
    for level in found:
        fewest[level.function] = min(level.count, fewest.get(level.function, level.count))
    return fewest
