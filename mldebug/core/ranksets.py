"""Fold rank sets the way people write them, `0-5,7`, and node names, `node[017-032]`. Backed by ClusterShell."""

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from ClusterShell.RangeSet import RangeSet, RangeSetException

from mldebug.core.errors import UsageError

MAX_RANK = 999_999
"""No job has more ranks; six digits bound what an interval can expand to."""

MAX_NODES = 65_536
MAX_TEXT = 1 << 20  # characters of a list of nodes

NO_GROUPS = RESOLVER_NOGROUP  # a name may begin with @ only where a person wrote it
_NOT_IN_A_LIST = re.compile(r"[^A-Za-z0-9_.,:@*/\[\]!&^ -]")
_SPAN = re.compile(r"([0-9]{1,30})-([0-9]{1,30})", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", re.ASCII)

_SET = re.compile(r"(\d{1,6}(-\d{1,6}(/\d{1,6})?)?)(,\d{1,6}(-\d{1,6}(/\d{1,6})?)?)*", re.ASCII)


def all_of(count: int) -> str:
    """`both`, `all 8`: of the ranks, the members, the GPUs."""
    return "both" if count == 2 else f"all {count:,}"


def fold_ranks(ranks: Iterable[int]) -> str:
    """Return `0-5,7` for {0..5, 7}; duplicates are folded away and no ranks are the empty string."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


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


def fold_nodes(names: Iterable[str]) -> str:
    """Return `node[017-018],login` for such names; what ClusterShell would take for a pattern stays as it is."""
    ordered = sorted(set(names))
    plain = [name for name in ordered if _NODE.fullmatch(name)]
    odd = [name for name in ordered if not _NODE.fullmatch(name)]
    return ",".join(filter(None, [str(NodeSet.fromlist(plain, resolver=NO_GROUPS)), *odd]))


def unfold_nodes(text: str, *, groups: bool = True) -> tuple[str, ...]:
    """Return the names that `node[1-40,42],login` stands for, sorted as their numbers are.

    UsageError when it is no such set or more than `MAX_NODES`; `@group` is one of the site's ClusterShell groups, unless
    no person wrote the text: a group may be what a program of the site prints.
    """
    if odd := _NOT_IN_A_LIST.search(
        text
    ):  # a group's name goes into a shell command where the site has set one up
        raise _not_nodes(text, f"{odd[0]!r} stands in no name of a host")
    spans = (int(last) - int(first) for first, last in _SPAN.findall(text))
    if len(text) > MAX_TEXT or max(spans, default=0) >= MAX_NODES:
        raise _not_nodes(text, f"it names more than {MAX_NODES:,} nodes")
    try:
        found = NodeSet(text) if groups else NodeSet(text, resolver=NO_GROUPS)
        count = len(found)
    except (NodeSetException, ValueError) as error:
        raise _not_nodes(text, str(error)) from error
    if not 0 < count <= MAX_NODES:
        raise _not_nodes(text, f"it names {count:,} nodes")
    names = tuple(found)
    if bad := next((name for name in names if not _NODE.fullmatch(name)), None):
        raise _not_nodes(text, f"{bad[:40]!r} is no name of a host")
    return names


def _not_nodes(text: str, why: str) -> UsageError:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return UsageError(
        f"{shown!r} is not a list of nodes: {why[:200]}", "write it like node[1-40,42],other7"
    )


def _not_a_set(text: str) -> UsageError:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return UsageError(f"{shown!r} is not a set of ranks", "write it like 0-5,7")
