"""Where the ranks were last, as their tracers saw it: those of which the same is known in one line, the stillest first."""

from collections.abc import Iterable

from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import RankView, Report
from mldebug.core.text import plural
from mldebug.jobs.heartbeat import span

MAX_LINES = 8


def traced_culprit(report: Report) -> RankView | None:
    """The first culprit that has a ring."""
    named = {one.rank: place for place, one in enumerate(report.diagnosis.culprits)}
    told = [one for one in report.ranks if one.culprit and one.trace]
    return min(told, key=lambda one: named.get(one.rank, len(named)), default=None)


def trace_title(one: RankView) -> str:
    """`Last calls of rank 2, from its trace ring, which was last written 35 s before`."""
    age = (
        ""
        if one.last_call_age is None
        else f", last written {span(one.last_call_age)} before it was read"
    )
    return f"Last calls of rank {one.rank}, from its trace ring{age}"


def trace_lines(ranks: Iterable[RankView]) -> tuple[str, ...]:
    """`ranks 0-1,3: line 80 of train:70 train_step, 36 s ago`: of the ages the shortest."""
    alike: dict[str, list[RankView]] = {}
    for one in ranks:
        if one.last_call:
            alike.setdefault(one.last_call, []).append(one)
    groups = sorted(alike.values(), key=lambda some: (-_age(some), some[0].rank))
    lines = [_line(some) for some in groups]
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    return (*lines[:MAX_LINES], f"{plural(len(lines) - MAX_LINES, 'more group')} in report.json")


def _age(some: Iterable[RankView]) -> float:
    return min(one.last_call_age or 0.0 for one in some)


def _line(some: list[RankView]) -> str:
    who = shorten_ranks(fold_ranks(one.rank for one in some), 60)
    rank = "rank" if len(some) == 1 else "ranks"
    return f"{rank} {who}: {some[0].last_call}, {span(_age(some))} ago"
