"""The changes between two captures in words, few of them however many ranks there are. Pure."""

from collections.abc import Iterable, Sequence

from mldebug.core.model import Movement, NodeCapture
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import Change, ChangeView, Comparison
from mldebug.core.text import plural
from mldebug.incidents.compare import RankChange, compare, is_active
from mldebug.incidents.report.sanitize import tidy
from mldebug.stall.sentences import seconds

MAX_MOVES = 8  # from one place to another, listed singly; ranks that went or came are always listed
MAX_PHRASES = 6  # kinds of change in the one sentence
MAX_RANKS = 60  # characters of a set of ranks in words
MAX_LABEL = 120
BUSY = 0.5  # of the time: more is computing, less only wakes now and then
ORDER = tuple(Change)

_Key = tuple[Change, bool, str, str]


def comparison(first: NodeCapture, later: NodeCapture) -> Comparison:
    """What changed between two captures of a job. Ranks with the same change are one entry."""
    groups: dict[_Key, list[RankChange]] = {}
    for one in compare(first, later):
        groups.setdefault(_key(one), []).append(one)
    ordered = sorted(groups.values(), key=_place)
    moves = [some for some in ordered if some[0].change is Change.MOVED]
    others = [some for some in ordered if some[0].change is not Change.MOVED]
    changes = [_view(some) for some in sorted([*others, *moves[:MAX_MOVES]], key=_place)]
    rest = moves[MAX_MOVES:]
    if rest:
        changes.append(_rest([one for some in rest for one in some], len(rest)))
    return Comparison(
        seconds=round(max(0.0, later.taken_at - first.taken_at), 1),
        summary=_summary(changes),
        changes=tuple(changes),
    )


def later_words(comparison_: Comparison) -> str:
    """The time between the two captures as text: `32 s later`."""
    return f"{seconds(comparison_.seconds)} later"


def change_lines(comparison_: Comparison) -> tuple[str, ...]:
    """One line for each kind of change."""
    if _nothing_moved(comparison_.changes):
        return (comparison_.summary,)
    return tuple(one.words for one in comparison_.changes)


def _key(one: RankChange) -> _Key:
    busy = one.counters is not None and one.counters.cpu_ratio >= BUSY
    apart = one.change in (Change.ACTIVE, Change.UNSEEN)
    return one.change, busy and apart, one.before, one.after


def _place(some: Sequence[RankChange]) -> tuple[int, int]:
    return ORDER.index(some[0].change), -len(some)


def _view(some: Sequence[RankChange]) -> ChangeView:
    first = some[0]
    ranks = fold_ranks(one.rank for one in some)
    before, after = tidy(first.before, MAX_LABEL), tidy(first.after, MAX_LABEL)
    return ChangeView(
        ranks=ranks,
        count=len(some),
        change=first.change,
        before=before,
        after=after,
        words=f"{_who(ranks, len(some))} {_sentence(first.change, before, after, some)}",
    )


def _rest(rest: Sequence[RankChange], kinds: int) -> ChangeView:
    ranks = fold_ranks(one.rank for one in rest)
    return ChangeView(
        ranks=ranks,
        count=len(rest),
        change=Change.MOVED,
        before="",
        after="",
        words=f"{_who(ranks, len(rest))} moved in {plural(kinds, 'other way')}",
    )


def _who(ranks: str, count: int) -> str:
    if len(ranks) > MAX_RANKS:
        return f"ranks {shorten_ranks(ranks, MAX_RANKS)} ({count:,})"
    return f"{'rank' if count == 1 else 'ranks'} {ranks}"


def _sentence(change: Change, before: str, after: str, some: Sequence[RankChange]) -> str:
    counters = _counters([one.counters for one in some])
    if change is Change.MOVED:
        return f"moved from {before} to {after}" if before != after else f"moved within {before}"
    if change is Change.ACTIVE:
        return f"in the same frames, with {counters}"
    if change is Change.REPLACED:
        return "came back as another process" if len(some) == 1 else "came back as other processes"
    if change is Change.UNSEEN:
        between = f", {counters} in between" if counters else ""
        return f"not to be compared: no stack in one of the captures{between}"
    return change.value


def _counters(all_: Iterable[Movement | None]) -> str:
    """`98 to 100 % CPU, 310 context switches, 4.1 MB read and written`: those that say more than a wait."""
    known = [one for one in all_ if one is not None and is_active(one)]
    if not known:
        return ""
    parts = [_span([100 * one.cpu_ratio for one in known], "% CPU")]
    parts.append(_span([one.switches for one in known], "context switches"))
    parts.append(_span([one.io_chars / 1e6 for one in known], "MB read and written"))
    return ", ".join(part for part in parts if part)


def _span(values: Sequence[float], unit: str) -> str:
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    if high == "0":
        return ""
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


def _summary(changes: Sequence[ChangeView]) -> str:
    """`nothing moved`; `ranks 0-1,3 unchanged; rank 2 moved from strike (train.py:34) to backward (train.py:80)`."""
    if _nothing_moved(changes):
        return "nothing moved"
    phrases = [one.words for one in changes[:MAX_PHRASES]]
    left = sum(one.count for one in changes[MAX_PHRASES:])
    return "; ".join([*phrases, f"{plural(left, 'more rank')} in other ways"] if left else phrases)


def _nothing_moved(changes: Sequence[ChangeView]) -> bool:
    return all(one.change is Change.UNCHANGED for one in changes)
