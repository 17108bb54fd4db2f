"""Ranks that do the same, as one row of a report."""

from collections.abc import Mapping

from mldebug.core.model import ClassifiedRank, Group, Role
from mldebug.core.ranksets import fold_ranks
from mldebug.diagnosis.classify.evidence import Case


def grouped(
    case: Case, frames: Mapping[int, tuple[str, ...]]
) -> tuple[tuple[Group, ...], dict[int, int]]:
    """Ranks with one class and one stack, those that do not wait first, then the smaller group first."""
    members: dict[tuple[str, Role, tuple[str, ...]], list[ClassifiedRank]] = {}
    for rank in case.ranks:
        members.setdefault((rank.is_.name, rank.is_.role, frames[rank.rank]), []).append(rank)
    ordered = sorted(
        members.items(),
        key=lambda item: (item[0][1] is Role.WAITING, len(item[1]), item[1][0].rank),
    )
    groups = tuple(make_group(key[2], ranks) for key, ranks in ordered)
    return groups, {rank.rank: index for index, (_, ranks) in enumerate(ordered) for rank in ranks}


def make_group(frames: tuple[str, ...], ranks: list[ClassifiedRank]) -> Group:
    """Ranks of one class; what the first of them does stands for all."""
    first = ranks[0]
    return Group(
        ranks=fold_ranks(rank.rank for rank in ranks),
        count=len(ranks),
        role=first.is_.role,
        class_=first.is_.name,
        doing=first.is_.doing,
        frames=frames,
    )
