"""Fold rank sets the way people write them: `0-5,7`. Backed by ClusterShell's RangeSet."""

import re
from collections.abc import Iterable

from ClusterShell.RangeSet import RangeSet, RangeSetException

from mldebug.errors import UsageError

MAX_RANK = 999_999
"""No job has more ranks; six digits bound what an interval can expand to."""

_SET = re.compile(r"(\d{1,6}(-\d{1,6}(/\d{1,6})?)?)(,\d{1,6}(-\d{1,6}(/\d{1,6})?)?)*", re.ASCII)


def fold_ranks(ranks: Iterable[int]) -> str:
    """Return `0-5,7` for {0..5, 7}; duplicates are folded away and no ranks are the empty string."""
    return str(RangeSet.fromlist([str(rank) for rank in sorted(set(ranks))]))


def unfold(text: str) -> tuple[int, ...]:
    """Return the sorted ranks that a folded set names; `UsageError` when it is no such set."""
    if not text:
        return ()
    if not _SET.fullmatch(text):
        raise _not_a_set(text)
    try:
        return tuple(sorted({int(rank) for rank in RangeSet(text)}))
    except RangeSetException as error:
        raise _not_a_set(text) from error


def shorten_ranks(folded: str, limit: int = 40) -> str:
    """Return a folded set cut after a comma, with `…`, where it is longer than `limit` characters."""
    if len(folded) <= limit:
        return folded
    kept = folded[: limit - 1].rpartition(",")[0]
    return f"{kept},…" if kept else f"{folded[: limit - 1]}…"


def _not_a_set(text: str) -> UsageError:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return UsageError(f"{shown!r} is not a set of ranks", "write it like 0-5,7")
