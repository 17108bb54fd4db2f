"""How far the ranks say that they are, in words: what the hook in their processes tells, and whether there is one."""

from collections.abc import Iterable

from mldebug.core.ranksets import all_of, fold_ranks, shorten_ranks
from mldebug.core.report_model import JobView, RankView
from mldebug.core.text import plural
from mldebug.jobs.heartbeat import phase_words, span

MAX_LINES = 8
UNTOUCHED = "an untouched job: no hook was seen in its ranks"


def job_words(job: JobView) -> str:
    """`step 41 · hook in 4 of 8 ranks`, or that the job is an untouched one; "" where neither is known."""
    step = "" if job.step is None else f"step {job.step}"
    return " · ".join(filter(None, (step, _hook(job))))


def step_words(one: RankView) -> str:
    """`41, in data_wait for 35 s`; "" where it says nothing."""
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
    lines = [_line(mine) for _, mine in sorted(alike.items())]
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    return (*lines[:MAX_LINES], f"{plural(len(lines) - MAX_LINES, 'more group')} in report.json")


def _line(alike: list[RankView]) -> str:
    """Of the ages the longest: since then nobody of them has moved."""
    first = alike[0]
    who = shorten_ranks(fold_ranks(one.rank for one in alike), 60)
    reached = span(max(one.step_age or 0.0 for one in alike))
    step = "no step yet" if first.step is None else f"step {first.step}, reached {reached} ago"
    words = phase_words(first.phase, max(one.phase_age or 0.0 for one in alike))
    told = f"{step}, {words}" if words else step
    return f"{'rank' if len(alike) == 1 else 'ranks'} {who}: {told}"


def _hook(job: JobView) -> str:
    if job.hooked is None:
        return ""
    if not job.hooked:
        return UNTOUCHED
    if job.hooked == job.world_size > 1:
        return f"hook in {all_of(job.world_size)} ranks"
    return f"hook in {job.hooked} of {plural(job.world_size, 'rank')}"
