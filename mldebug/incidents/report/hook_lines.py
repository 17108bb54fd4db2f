"""Lines of a report from what mldebug's hook inside the ranks wrote: their steps and phases, and the last calls that its tracer recorded.

Equal ranks share a line.
"""

from collections.abc import Iterable

from mldebug.core.ranksets import all_of, fold_ranks, shorten_ranks
from mldebug.core.report_model import JobView, RankView, Report
from mldebug.core.text import plural
from mldebug.jobs.heartbeat import phase_words, span

MAX_LINES = 8
UNTOUCHED = "started without mldebug run: its ranks have no hook"


def job_words(job: JobView) -> str:
    """The job's step and hooks in words: `step 41 · hook in 4 of 8 ranks`, or that the job has no hook; "" where neither is
    known.
    """
    step = "" if job.step is None else f"step {job.step}"
    return " · ".join(filter(None, (step, _hook(job))))


def step_words(one: RankView) -> str:
    """How far one rank is: `41, in data_wait for 35 s`; "" where neither step nor phase is known."""
    phase = phase_words(one.phase, one.phase_age)
    if one.step is None:
        return f"none yet, {phase}" if phase else ""
    return f"{one.step}, {phase}" if phase else str(one.step)


def step_lines(ranks: Iterable[RankView]) -> tuple[str, ...]:
    """A line for ranks that are equally far, those behind first: `rank 2: step 40, reached 36 s ago, in data_wait for 35 s`."""
    alike: dict[tuple[int, str], list[RankView]] = {}
    for one in ranks:
        if one.step is not None or one.phase:
            alike.setdefault((-1 if one.step is None else one.step, one.phase), []).append(one)
    lines = [_step_line(mine) for _, mine in sorted(alike.items())]
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    return (*lines[:MAX_LINES], f"{plural(len(lines) - MAX_LINES, 'more group')} in report.json")


def _step_line(alike: list[RankView]) -> str:
    """With the longest of their ages: since then none of them has moved."""
    first = alike[0]
    who = shorten_ranks(fold_ranks(one.rank for one in alike), 60)
    reached = span(max(one.step_age or 0.0 for one in alike))
    step = "no step yet" if first.step is None else f"step {first.step}, reached {reached} ago"
    words = phase_words(first.phase, max(one.phase_age or 0.0 for one in alike))
    state = f"{step}, {words}" if words else step
    return f"{'rank' if len(alike) == 1 else 'ranks'} {who}: {state}"


def _hook(job: JobView) -> str:
    if job.hooked is None:
        return ""
    if not job.hooked:
        return UNTOUCHED
    if job.hooked == job.world_size > 1:
        return f"hook in {all_of(job.world_size)} ranks"
    return f"hook in {job.hooked} of {plural(job.world_size, 'rank')}"


def traced_culprit(report: Report) -> RankView | None:
    """The first culprit with a call trace; None without one."""
    named = {one.rank: place for place, one in enumerate(report.diagnosis.culprits)}
    culprits = [one for one in report.ranks if one.culprit and one.trace]
    return min(culprits, key=lambda one: named.get(one.rank, len(named)), default=None)


def trace_title(one: RankView) -> str:
    """The title above a rank's last calls: `Last calls of rank 2, from its trace ring, last written 35 s before it was
    read`.
    """
    age = (
        ""
        if one.last_call_age is None
        else f", last written {span(one.last_call_age)} before it was read"
    )
    return f"Last calls of rank {one.rank}, from its trace ring{age}"


def trace_lines(ranks: Iterable[RankView]) -> tuple[str, ...]:
    """The last function call that each rank's hook has recorded, as text. Ranks with the same call share a line, with the smallest of their ages:
    `ranks 0-1,3: line 80 of train:70 train_step, 36 s ago`.
    """
    alike: dict[str, list[RankView]] = {}
    for one in ranks:
        if one.last_call:
            alike.setdefault(one.last_call, []).append(one)
    groups = sorted(alike.values(), key=lambda some: (-_age(some), some[0].rank))
    lines = [_trace_line(some) for some in groups]
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    return (*lines[:MAX_LINES], f"{plural(len(lines) - MAX_LINES, 'more group')} in report.json")


def _age(some: Iterable[RankView]) -> float:
    return min(one.last_call_age or 0.0 for one in some)


def _trace_line(some: list[RankView]) -> str:
    who = shorten_ranks(fold_ranks(one.rank for one in some), 60)
    rank = "rank" if len(some) == 1 else "ranks"
    return f"{rank} {who}: {some[0].last_call}, {span(_age(some))} ago"
