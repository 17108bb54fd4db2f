"""The exits of an attempt as a timeline: which rank ended, how, when, and by which source.

Bounded, however many ranks there are. Pure.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import TimelineEvent
from mldebug.core.text import plural, rfc3339
from mldebug.diagnosis.exits.model import AttemptExit, RankExit, full_words
from mldebug.diagnosis.exits.rank_exit import explain_exits

MAX_SINGLE = 32  # exits that are listed one by one; the others are folded by how they ended
MAX_FOLDED = 16
UNKNOWN = "nobody saw its status"
NO_ORDER = ", nobody saw when"  # of every exit of an attempt that nobody watched
SOURCES = {"exit status of the process": "the kernel", "its zombie": "the kernel, of its zombie"}

_NOTE = re.compile(r"rank (\d{1,6}) ended: ")


def with_exits(
    events: Sequence[TimelineEvent], attempt: AttemptExit, blamed: Collection[int], noticed: float
) -> tuple[TimelineEvent, ...]:
    """The timeline of an incident with the attempt's exits in their places, instead of notes about single exits made while it was open.

    `blamed`: ranks that are named. `noticed`: unix time, used for exits whose own time is not
    known.
    """
    exits = tuple(exit_events(attempt, blamed, noticed))
    if not exits:
        return tuple(events)
    ranks = {one.rank for one in attempt.exits}
    others = [one for one in events if not (one.at >= exits[0].at and _noted(one) in ranks)]
    return tuple(sorted((*exits, *others), key=lambda one: one.at))


def exit_events(
    attempt: AttemptExit, blamed: Collection[int], noticed: float
) -> Iterator[TimelineEvent]:
    """Yield timeline events for the exits of an attempt: one for each of the first exits and of the `blamed` ranks, then
    one for each kind of the remaining exits. `noticed`: unix time, used for exits whose own time is not known.
    """
    exits = [one.exit for one in explain_exits(attempt)]
    times = list(_in_order(exits, noticed))
    watched = any(one.at or one.moment is not None for one in exits)
    single = {at for at, one in enumerate(exits) if at < MAX_SINGLE or one.rank in blamed}
    for at, one in enumerate(exits):
        if at in single:
            together = at > 0 and one.moment is not None and one.moment == exits[at - 1].moment
            yield _event(times[at], one, together=together, watched=watched)
    yield from _folded([(times[at], one) for at, one in enumerate(exits) if at not in single])


def _noted(event: TimelineEvent) -> int | None:
    note = _NOTE.match(event.what)
    return int(note[1]) if note else None


def _in_order(exits: Iterable[RankExit], noticed: float) -> Iterator[float]:
    """Times that never go back: the order is known better than the clock."""
    last = 0.0
    for one in exits:
        last = max(last, one.at)
        yield last or noticed


def _event(at: float, one: RankExit, *, together: bool, watched: bool) -> TimelineEvent:
    when = "" if one.at else ", noticed afterwards" if watched else NO_ORDER
    when = ", at the same moment" if together else when
    words = f"rank {one.rank}{_pid(one)}: {full_words(one.status)}{when}"
    return TimelineEvent(at=rfc3339(at), what=words, source=_source(one))


def _source(one: RankExit) -> str:
    return UNKNOWN if one.status is None else SOURCES.get(one.source, one.source)


def _folded(rest: Sequence[tuple[float, RankExit]]) -> Iterator[TimelineEvent]:
    kinds: dict[tuple[str, str], list[tuple[float, RankExit]]] = {}
    for at, one in rest:
        kinds.setdefault((full_words(one.status), _source(one)), []).append((at, one))
    for (words, source), some in list(kinds.items())[:MAX_FOLDED]:
        yield TimelineEvent(at=rfc3339(some[0][0]), what=_many(words, some), source=source)
    left = [pair for some in list(kinds.values())[MAX_FOLDED:] for pair in some]
    if left:
        what = f"{plural(len(left), 'more rank')} ended in other ways"
        yield TimelineEvent(at=rfc3339(left[0][0]), what=what)


def _many(words: str, some: Sequence[tuple[float, RankExit]]) -> str:
    ranks = shorten_ranks(fold_ranks(one.rank for _, one in some), 60)
    if len(some) == 1:
        return f"rank {ranks}{_pid(some[0][1])}: {words}"
    span = some[-1][0] - some[0][0]
    within = f", within {span:.1f} s" if span >= 0.1 else ""
    return f"ranks {ranks} ({len(some):,} ranks): {words}{within}"


def _pid(one: RankExit) -> str:
    """Its pid in brackets; "" where it is not known (0), as of a log alone."""
    return f" (pid {one.pid})" if one.pid else ""
