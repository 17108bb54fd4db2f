"""Sets of ranks, `0-5,7`, and of nodes, `node[017-032]`: the one place that folds them, and the one that unfolds what others wrote.

A job, a node or a file may write anything, so what a text stands for is counted (sums of spans, products of brackets) before one
name or number of it is made. Whatever is wrong with a text is a `UsageError`, and nothing else leaves this module. Only it may build
ClusterShell's `NodeSet`, whose time has no bound.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NoReturn

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from mldebug.core.errors import UsageError

MAX_RANK = 999_999
"""No job has more ranks; six digits bound what an interval can expand to."""

MAX_NODES = 65_536
MAX_TEXT = 1 << 20  # characters of a list
MAX_RANK_TEXT = (
    32_768  # characters of the ranks on one node: 4,096 ranks that are dealt out in turn
)
MAX_BRACKETS = 8  # of one name
MAX_MANIFOLD = {2: 4096}
"""Names that ClusterShell folds by all their numbers, by how many each has; it compares each with each."""
MAX_MORE = 512  # of more than two

NO_GROUPS = RESOLVER_NOGROUP  # a name may begin with @ only where a person wrote it
_NOT_IN_A_LIST = re.compile(r"[^A-Za-z0-9_.,:@*/\[\]!&^ -]")
_BY_CLUSTERSHELL = re.compile(
    r"[@*!&^:]"
)  # groups, wildcards, operators: only a person writes them
_NAMES = re.compile(r"((?:[^,\s\[\]]|\[[^\[\]]*\])+)(?:\s*,\s*|\Z)")
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([1-9][0-9]{0,8}))?)?", re.ASCII)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", re.ASCII)

_SPAN = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?:/(\d{1,6}))?)?", re.ASCII)

Intervals = tuple[tuple[int, int], ...]
"""First and last rank of each, in their order; no two of them touch."""


def all_of(count: int) -> str:
    """A count of things that are all meant, in words: `both` for 2, else `all 8`."""
    return "both" if count == 2 else f"all {count:,}"


# --- ranks ---------------------------------------------------------------------------------------


def fold_ranks(ranks: Iterable[int]) -> str:
    """A set of ranks as text: `0-5,7` for {0..5, 7}; duplicates are dropped, no ranks give ""."""
    return _folded(joined((rank, rank) for rank in set(ranks)))


def unfold(text: str) -> tuple[int, ...]:
    """The sorted ranks in a folded set such as `0-3,7`. UsageError where the text is not such a set, or names more ranks than a
    job can have.
    """
    spans = _spans(text) if text else ()
    if sum(map(len, spans)) > MAX_RANK + 1:
        raise _not_a_set(text)
    return tuple(sorted(set(itertools.chain.from_iterable(spans))))


def rank_intervals(text: str) -> Intervals:
    """The ranks in a folded set that a node announced, as (first, last) pairs, without expanding them. UsageError where it is no
    such set, has steps (`0-8/2`), or is too long.
    """
    if len(text) > MAX_RANK_TEXT or "/" in text:
        raise _not_a_set(text)
    return joined((span[0], span[-1]) for span in _spans(text)) if text else ()


def joined(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Join intervals of ranks that overlap or touch. Returns them sorted."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def count_ranks(intervals: Intervals) -> int:
    """How many ranks these (first, last) pairs contain."""
    return sum(last - first + 1 for first, last in intervals)


def join_intervals(texts: Iterable[str]) -> Intervals:
    """All ranks in the sets that the nodes of a run announced, as (first, last) pairs; texts that are no set are ignored."""
    found: list[tuple[int, int]] = []
    for text in texts:
        with suppress(UsageError):
            found += rank_intervals(text)
    return joined(found)


def join_ranks(texts: Iterable[str]) -> str:
    """All ranks in these folded sets as one folded set; texts that are no set are ignored."""
    return _folded(join_intervals(texts))


def shorten_ranks(folded: str, limit: int = 40) -> str:
    """Return a folded set cut after a comma, with `…`, where it is longer than `limit` characters."""
    if len(folded) <= limit:
        return folded
    kept = folded[: limit - 1].rpartition(",")[0]
    return f"{kept},…" if kept else f"{folded[: limit - 1]}…"


def _folded(intervals: Intervals) -> str:
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in intervals)


def _spans(text: str) -> tuple[range, ...]:
    if len(text) > MAX_TEXT:
        raise _not_a_set(text)
    parts = [_SPAN.fullmatch(part) for part in text.split(",")]
    found = tuple(
        range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
        for part in parts
        if part and part[3] not in ("0", "00", "000", "0000", "00000", "000000")
    )
    if len(found) < len(parts) or not all(found):
        raise _not_a_set(text)
    return found


# --- nodes ---------------------------------------------------------------------------------------


def fold_nodes(names: Iterable[str]) -> str:
    """Node names as a short list, `node[017-018],login`. Names that ClusterShell would read as patterns are listed as they are,
    behind the others.
    """
    ordered = sorted(set(names))
    plain = [name for name in ordered if _NODE.fullmatch(name)]
    odd = [name for name in ordered if not _NODE.fullmatch(name)]
    return ",".join((*_folded_nodes(plain), *odd))


def _folded_nodes(names: list[str]) -> Iterator[str]:
    """Of many names with several numbers each only the last number is folded."""
    manifold = [name for name in names if len(_DIGITS.findall(name)) > 1]
    numbers_each = max((len(_DIGITS.findall(name)) for name in manifold), default=0)
    if len(manifold) <= MAX_MANIFOLD.get(numbers_each, MAX_MORE):
        if names:
            yield str(NodeSet.fromlist(names, resolver=NO_GROUPS))
        return
    others = [name for name in names if len(_DIGITS.findall(name)) < 2]
    yield from _folded_nodes(others)
    by_rest: dict[tuple[str, int, str], list[int]] = {}
    for name in manifold:
        *_, last = _DIGITS.finditer(name)
        rest = name[: last.start()], len(last[0]), name[last.end() :]
        by_rest.setdefault(rest, []).append(int(last[0]))
    for (before, width, after), numbers in by_rest.items():
        spans = [
            f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
            for first, last in joined((number, number) for number in numbers)
        ]
        alone = len(numbers) == 1
        yield f"{before}{spans[0] if alone else '[' + ','.join(spans) + ']'}{after}"


def unfold_nodes(text: str, *, groups: bool = True, most: int = MAX_NODES) -> tuple[str, ...]:
    """The node names in a list such as `node[1-40,42],login`, sorted, numbers by value.

    UsageError where it is no such list, or names more than `most`. `groups`: allow ClusterShell's operators and the site's
    `@group`, for text that a person typed; a group may run a program of the site.
    """
    if odd := _NOT_IN_A_LIST.search(
        text
    ):  # a group's name goes into a shell command where the site has set one up
        raise _not_nodes(text, f"{odd[0]!r} stands in no name of a host")
    if _BY_CLUSTERSHELL.search(text):
        names = _by_clustershell(text, most) if groups else _refuse_operators(text)
    else:
        parts = _name_parts(text)
        _check_count(text, parts, most)
        expanded = ("".join(one) for part in parts for one in itertools.product(*part))
        names = tuple(sorted(set(expanded), key=_by_numbers))
    if bad := next((name for name in names if not _NODE.fullmatch(name)), None):
        raise _not_nodes(text, f"{bad[:40]!r} is no name of a host")
    return names


def check_nodes(text: str) -> None:
    """Raise UsageError where `unfold_nodes` could not use a job's node list; the list is not expanded."""
    if _NOT_IN_A_LIST.search(text) or _BY_CLUSTERSHELL.search(text):
        raise _not_nodes(text, "it has characters that stand in no name of a host")
    _check_count(text, _name_parts(text), MAX_NODES)


def _check_count(text: str, parts: "list[Part]", most: int) -> None:
    count = sum(math.prod(len(one) for one in part) for part in parts)
    if not 0 < count <= most:
        raise _not_nodes(text, f"it names {count:,} nodes")


class _Numbers:
    """The numbers of one bracket, `08-11,14`: counted at once, made one after the other."""

    def __init__(self, text: str, whole: str) -> None:
        self._spans: list[tuple[range, int]] = []
        for part in text.split(","):
            found = _NUMBERS.fullmatch(part.strip())
            if found is None:
                raise _not_nodes(whole, f"{part[:40]!r} is no span of numbers")
            first, last = found[1], found[2] or found[1]
            span = range(int(first), int(last) + 1, int(found[3] or 1))
            if not span:
                raise _not_nodes(whole, f"{part[:40]!r} ends before it begins")
            self._spans.append((span, len(first) if first.startswith("0") else 0))

    def __len__(self) -> int:
        return sum(len(span) for span, _ in self._spans)

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{width}d}" for span, width in self._spans for number in span)


Part = list["tuple[str] | _Numbers"]


def _name_parts(text: str) -> list[Part]:
    """Each name of the list as its texts and brackets, none of them expanded."""
    if len(text) > MAX_TEXT:
        raise _not_nodes(text, f"it has more than {MAX_TEXT:,} characters")
    found: list[Part] = []
    at, text = 0, text.strip()
    while at < len(text):
        name = _NAMES.match(text, at)
        if name is None:
            raise _not_nodes(text, f"{text[at : at + 40]!r} is no name of a host")
        pieces = re.split(r"\[([^\[\]]*)\]", name[1])
        if len(pieces) > 2 * MAX_BRACKETS + 1:
            raise _not_nodes(text, f"a name has more than {MAX_BRACKETS} brackets")
        found.append([_Numbers(one, text) if odd % 2 else (one,) for odd, one in enumerate(pieces)])
        at = name.end()
    return found


def _by_numbers(name: str) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Sort key: as ClusterShell orders names, since all nodes of a run must have the same order, whatever version they run."""
    return _DIGITS.sub("%s", name), tuple((len(one), one) for one in _DIGITS.findall(name))


def _refuse_operators(text: str) -> NoReturn:
    odd = _BY_CLUSTERSHELL.search(text)
    raise _not_nodes(text, f"{odd[0] if odd else ''!r} stands in no name of a host")


def _by_clustershell(text: str, most: int) -> tuple[str, ...]:
    """What a person wrote with groups or operators. What is between the operators is counted first."""
    plain = [part for part in re.split(r"[!&^]", text) if not re.search(r"[@*:]", part)]
    if parts := [part for some in plain for part in _name_parts(some)]:
        _check_count(text, parts, most)
    try:
        found = NodeSet(text)
        if not 0 < len(found) <= most:
            raise _not_nodes(text, f"it names {len(found):,} nodes")
        return tuple(found)
    except UsageError:
        raise
    except Exception as error:  # a parser of others, whose errors are many
        raise _not_nodes(text, str(error) or type(error).__name__) from error


def _not_nodes(text: str, why: str) -> UsageError:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return UsageError(
        f"{shown!r} is not a list of nodes: {why[:200]}", "write it like node[1-40,42],other7"
    )


def _not_a_set(text: str) -> UsageError:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return UsageError(f"{shown!r} is not a set of ranks", "write it like 0-5,7")
