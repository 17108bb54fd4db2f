"""Where the GPU hours of a fleet went, by user or job and by week. Pure."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from mldebug.core.model.base import ReportData
from mldebug.core.text import aligned
from mldebug.fleet.answers.jobs import PRODUCTIVE
from mldebug.fleet.events import AnyEvent, AttemptEvent

WEEK = 7 * 86400.0
MONDAY = 4 * 86400.0  # unix time of the first Monday
MOST_WEEKS = 60  # over which one attempt is spread: what is older falls into the first of them
GROUPS = ("user", "job", "all")


class FleetHours(ReportData, frozen=True, kw_only=True):
    """The GPU hours of one group in one week. `week`: as ISO 8601 has it, `2026-W48`; `uses`: hours by what they went into."""

    week: str
    group: str
    gpu_hours: float
    productive_ratio: float
    uses: dict[str, float]


class HoursList(ReportData, frozen=True, kw_only=True):
    """GPU hours by week, the newest first, and in a week the group with most. `by`: user, job or all."""

    by: str
    hours: tuple[FleetHours, ...]


def hours(events: Sequence[AnyEvent], by: str, since: float) -> HoursList:
    """The GPU hours of these attempts from the week of `since` (unix) on. `events`: the newest of each attempt of each node. The hours
    of an attempt are spread evenly over its weeks: an event has its sums alone.
    """
    sums: dict[tuple[int, str], dict[str, float]] = {}
    for event in events:
        if not isinstance(event, AttemptEvent):
            continue
        for week, share in _shares(event):
            uses = sums.setdefault((week, _group(event, by)), {})
            for use, seconds in event.gpu_seconds.items():
                uses[use] = uses.get(use, 0.0) + share * seconds
    first = _week(since)
    rows = [_row(week, group, uses) for (week, group), uses in sums.items() if week >= first]
    rows = [one for one in rows if one.gpu_hours > 0]
    rows.sort(key=lambda one: (one.week, one.gpu_hours), reverse=True)
    return HoursList(by=by, hours=tuple(rows))


def _group(event: AttemptEvent, by: str) -> str:
    if by == "user":
        return event.user or str(event.uid)
    return (event.job or event.run) if by == "job" else ""


def _shares(event: AttemptEvent) -> Iterator[tuple[int, float]]:
    """The weeks in which an attempt ran, each with the share of its time."""
    end = event.ended if event.ended is not None else max(event.at, event.began)
    last = _week(end)
    first = max(_week(event.began), last - MOST_WEEKS)
    begin = max(event.began, _start(first))
    if end <= begin:
        yield last, 1.0
        return
    for week in range(first, last + 1):
        inside = min(end, _start(week + 1)) - max(begin, _start(week))
        yield week, inside / (end - begin)


def _week(at: float) -> int:
    return int((at - MONDAY) // WEEK)


def _start(week: int) -> float:
    return MONDAY + week * WEEK


def _row(week: int, group: str, uses: dict[str, float]) -> FleetHours:
    whole = sum(uses.values())
    year, number, _ = datetime.fromtimestamp(_start(week), UTC).isocalendar()
    return FleetHours(
        week=f"{year}-W{number:02}",
        group=group,
        gpu_hours=round(whole / 3600, 3),
        productive_ratio=round(uses.get(PRODUCTIVE, 0.0) / whole, 4) if whole else 0.0,
        uses={
            use: round(seconds / 3600, 3)
            for use, seconds in sorted(uses.items(), key=lambda one: -one[1])
        },
    )


def hours_lines(found: HoursList) -> Iterator[str]:
    """The hours as a table for a person."""
    rows = [("week", found.by, "GPU hours", "productive", "the rest")]
    for one in found.hours:
        rest = ", ".join(f"{use} {spent:.1f}" for use, spent in list(one.uses.items())[:6] if use != PRODUCTIVE)  # fmt: skip
        rows.append((one.week, one.group, f"{one.gpu_hours:.1f}", f"{100 * one.productive_ratio:.0f} %", rest))  # fmt: skip
    yield from aligned(rows)
