"""How a job ended, for text and HTML reports: the last lines of the rank that failed first, then every exit in order."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from mldebug.core.model import Group, Role
from mldebug.core.report_model import RankView, Report, TimelineEvent
from mldebug.diagnosis.exits.timeline import NO_ORDER, UNKNOWN

MAX_SHOWN = 10  # events that are shown without unfolding; the last one is shown as well
_TIME = re.compile(r"\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d(?:\.\d{1,3})?)\d*Z", re.ASCII)


class ExitEvent(NamedTuple):
    """One line of the timeline of exits.

    `culprit`: whether it is the exit of a rank that the report names.
    """

    time: str
    what: str
    source: str
    culprit: bool


class ExitStory(NamedTuple):
    """The timeline of exits.

    If there are many events, those in the middle are in a field of their own, to be folded. `ordered`: somebody saw when they were; else
    they bear no times.
    """

    day: str  # 2026-11-21
    first: Sequence[ExitEvent]
    middle: Sequence[ExitEvent]
    last: Sequence[ExitEvent]
    ordered: bool = True


def is_end(report: Report) -> bool:
    """Whether the report is of a bad end, and not of a stall."""
    return report.kind == "abnormal_end"


def nobody_lives(report: Report) -> bool:
    """Whether all ranks have ended, so that there are no stacks to show."""
    return is_end(report) and all(one.role is Role.EXITED for one in report.ranks)


def others(report: Report) -> tuple[tuple[int, Group], ...]:
    """(number, group) of the report's groups of ranks.

    Of a job that is over, groups with a culprit are left out, as they are shown elsewhere.
    """
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
    """The first culprit of a bad end whose last lines are known; None without one, or for other reports."""
    if not is_end(report):
        return None
    named = {one.rank: place for place, one in enumerate(report.diagnosis.culprits)}
    culprits = [one for one in report.ranks if one.culprit and one.log]
    return min(culprits, key=lambda one: named.get(one.rank, len(named)), default=None)


def words_title(one: RankView) -> str:
    """The title above a rank's last lines, with their source.

    Lines of the job's log may be another rank's.
    """
    if one.log_source == "the job's log":
        return "Last lines of the job's log (they bear no rank's mark)"
    return f"Last lines of rank {one.rank}" + (f", from {one.log_source}" if one.log_source else "")


def story(report: Report) -> ExitStory:
    """The timeline as events.

    An event that only repeats the summary is replaced by the time of the judgement. Empty where nobody saw an exit.
    """
    ordered = not all(NO_ORDER in one.what for one in report.timeline)
    if not ordered and all(one.source == UNKNOWN for one in report.timeline):
        return ExitStory("", (), (), ())
    exits = tuple(
        f"rank {one.rank} (pid {one.pid}):" if one.pid else f"rank {one.rank}:"
        for one in report.diagnosis.culprits
        if one.rank is not None
    )
    summary = report.diagnosis.summary.lower()
    events = [_event(one, exits, summary) for one in report.timeline]
    if not ordered:
        events = [one._replace(time="", what=one.what.replace(NO_ORDER, "")) for one in events]
    day = report.timeline[0].at[:10] if report.timeline else ""
    if len(events) <= MAX_SHOWN + 2:
        return ExitStory(day, events, (), (), ordered)
    return ExitStory(day, events[:MAX_SHOWN], events[MAX_SHOWN:-1], events[-1:], ordered)


def _event(event: TimelineEvent, exits: tuple[str, ...], summary: str) -> ExitEvent:
    found = _TIME.fullmatch(event.at)
    repeats = len(event.what) > 20 and summary.startswith(event.what.lower())
    return ExitEvent(
        time=found[1] if found else event.at,
        what="the agent judged the end and wrote this report" if repeats else event.what,
        source=event.source,
        culprit=bool(exits) and event.what.startswith(exits),
    )
