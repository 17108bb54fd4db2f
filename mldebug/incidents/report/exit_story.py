"""How a job ended, for the text and the HTML report: the first failing rank with its last lines, then every exit in order."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from mldebug.core.model import Group, Role
from mldebug.core.report_model import RankView, Report, TimelineEvent

MAX_SHOWN = 10  # events that are shown without unfolding; the last one is shown as well
_TIME = re.compile(r"\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d(?:\.\d{1,3})?)\d*Z", re.ASCII)


class ExitEvent(NamedTuple):
    """One line of an exit's timeline. `culprit`: it is the exit of a rank that is named."""

    time: str
    what: str
    source: str
    culprit: bool


class ExitStory(NamedTuple):
    """The timeline of an exit; where it has many events, those in the middle stand apart."""

    day: str  # 2026-11-21
    first: Sequence[ExitEvent]
    middle: Sequence[ExitEvent]
    last: Sequence[ExitEvent]


def is_end(report: Report) -> bool:
    """Whether it is the report of an abnormal exit, not of a stall."""
    return report.kind == "abnormal_end"


def nobody_lives(report: Report) -> bool:
    """Have all ranks ended, so that there is no stack to show?"""
    return is_end(report) and all(one.role is Role.EXITED for one in report.ranks)


def others(report: Report) -> tuple[tuple[int, Group], ...]:
    """The report's groups of ranks with their numbers; of a job that is over only groups with ranks that the report does not name elsewhere."""
    groups = tuple(enumerate(report.groups))
    if not nobody_lives(report):
        return groups
    blamed = {one.group for one in report.ranks if one.culprit}
    return tuple(pair for pair in groups if pair[0] not in blamed)


def groups_title(report: Report) -> str:
    """The heading above the groups of ranks."""
    if not nobody_lives(report):
        return "Who stands where"
    return "The others, as a consequence" if report.diagnosis.culprits else "How the ranks ended"


def last_words(report: Report) -> RankView | None:
    """The first culprit of an exit whose last lines are known; None without one."""
    if not is_end(report):
        return None
    named = {one.rank: place for place, one in enumerate(report.diagnosis.culprits)}
    culprits = [one for one in report.ranks if one.culprit and one.log]
    return min(culprits, key=lambda one: named.get(one.rank, len(named)), default=None)


def words_title(one: RankView) -> str:
    """`Its last lines, from its own output`; lines of the job's log may be another rank's."""
    if one.log_source == "the job's log":
        return "Last lines of the job's log (they bear no rank's mark)"
    return f"Last lines of rank {one.rank}" + (f", from {one.log_source}" if one.log_source else "")


def story(report: Report) -> ExitStory:
    """The timeline as events. An event that only repeats the summary is replaced by the moment of the judgement."""
    exits = tuple(
        f"rank {one.rank} (pid {one.pid}):"
        for one in report.diagnosis.culprits
        if one.rank is not None
    )
    summary = report.diagnosis.summary.lower()
    events = [_event(one, exits, summary) for one in report.timeline]
    day = report.timeline[0].at[:10] if report.timeline else ""
    if len(events) <= MAX_SHOWN + 2:
        return ExitStory(day, events, (), ())
    return ExitStory(day, events[:MAX_SHOWN], events[MAX_SHOWN:-1], events[-1:])


def _event(event: TimelineEvent, exits: tuple[str, ...], summary: str) -> ExitEvent:
    found = _TIME.fullmatch(event.at)
    repeats = len(event.what) > 20 and summary.startswith(event.what.lower())
    return ExitEvent(
        time=found[1] if found else event.at,
        what="the agent judged the end and wrote this report" if repeats else event.what,
        source=event.source,
        culprit=bool(exits) and event.what.startswith(exits),
    )
