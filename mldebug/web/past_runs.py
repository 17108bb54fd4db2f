"""Runs that are over, by what the agent keeps of them: the history of their figures, the record of their start, where their GPU hours went,
and their reports. Pure.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from mldebug.core.redact import clean
from mldebug.core.text import plural, rfc3339, seconds_of
from mldebug.core.units import duration_words
from mldebug.goodput.account.job_goodput import AttemptGoodput, JobGoodput
from mldebug.goodput.account.run_summary import ENDS, summary_lines
from mldebug.goodput.scalars.history import RunHistory, history_of
from mldebug.goodput.scalars.model import LOSS
from mldebug.jobs.run_records.model import RunSummary
from mldebug.status.snapshot import Snapshot
from mldebug.web.charts import Chart, EventLine, charts, event_lines, span_words, sparklines
from mldebug.web.incident_list import IncidentRow, rows_of
from mldebug.web.page import PageRequest

REPORTS = 10
CSS = {"well": "good", "failed": "bad"}


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one run that is over. Times are unix seconds; None: not known."""

    id: str
    name: str
    user: str
    script: str = ""
    ranks: int = 0
    began: float | None = None
    ended: float | None = None
    outcome: str = ""  # well, failed, unknown; "": nobody accounted for it
    exits: str = ""  # of its ranks, in words
    attempts: int = 0


class PastRunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is over, in the list of the page Runs."""

    id: str
    name: str
    who: str
    css_class: str
    end: str  # how it ended, and how long it ran
    when: str  # RFC 3339; "": not known
    ago: str
    sparklines: tuple[Chart, ...] = ()


class RunFact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about a run: its label and its value."""

    name: str
    text: str


class PastRunPageData(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of the page of one run shows once the run is over."""

    over: bool = True
    id: str
    name: str
    css_class: str
    end: str
    when: str  # RFC 3339; "": not known
    ago: str
    facts: tuple[RunFact, ...]
    goodput: tuple[str, ...]  # how it ended and where its GPU hours went
    charts: tuple[Chart, ...]
    no_charts: str  # what is said where there are none
    span: str
    events: tuple[EventLine, ...]
    reports: tuple[IncidentRow, ...]
    unread: str


def _past_ids(snapshot: Snapshot) -> Iterator[str]:
    """The ids of the runs that are over and of which more than reports is kept."""
    living = {run.id for run in snapshot.runs}
    known = [one.run for one in snapshot.histories]
    known += [one.summary.run for one in snapshot.run_records]
    known += [one.run for job in snapshot.goodput for one in job.newest]
    return (id for id in dict.fromkeys(known) if id not in living)


def past_rows(snapshot: Snapshot, most: int) -> tuple[PastRunRow, ...]:
    """The runs that are over as rows, at most so many: those that ended last come first."""
    found = [one for id in _past_ids(snapshot) if (one := _past_run(id, snapshot)) is not None]
    newest = sorted(found, key=lambda one: -(one.ended or 0.0))
    return tuple(_row(one, snapshot) for one in islice(newest, most))


def past_page(request: PageRequest) -> PastRunPageData | None:
    """The page of the run with the request's id, where that is over; None where nothing is known of it, or it lives."""
    snapshot, id = request.snapshot, request.id
    mine = [entry for entry in request.entries if id and entry.job_id == id]
    if id in {run.id for run in snapshot.runs}:
        return None
    known = _past_run(id, snapshot)
    if known is None:
        if not mine:
            return None
        known = PastRun(
            id=id, name=mine[0].job, user=mine[0].user, ranks=mine[0].ranks, ended=seconds_of(mine[0].time)
        )  # fmt: skip
    history = history_of(snapshot.histories, id)
    return PastRunPageData(
        id=id,
        name=clean(known.name, 60),
        css_class=CSS.get(known.outcome, "quiet"),
        end=_end(known),
        when=rfc3339(known.ended) if known.ended else "",
        ago=_ago(known, snapshot),
        facts=tuple(_facts(known, history)),
        goodput=_goodput(id, snapshot),
        charts=charts(history) if history else (),
        no_charts="It was too short for charts." if history else "No figures of it are kept.",
        span=span_words(history) if history else "",
        events=event_lines(history) if history else (),
        reports=rows_of(mine[:REPORTS], snapshot),
        unread=request.unread,
    )


def _past_run(id: str, snapshot: Snapshot) -> PastRun | None:
    """What is kept of a run, of whatever there is; None for nothing."""
    record = next((one.summary for one in snapshot.run_records if one.summary.run == id), None)
    history = history_of(snapshot.histories, id)
    attempts = [one for one, _ in _attempts(id, snapshot)]
    if record is None and history is None and not attempts:
        return None
    named = record or history or next(job for _, job in _attempts(id, snapshot))
    ends = [one.ended for one in attempts if one.ended is not None]
    return PastRun(
        id=id,
        name=named.name,
        user=named.user,
        script=named.script,
        ranks=record.world_size if record else 0,
        began=_began(record, history, attempts),
        ended=max(ends, default=None) or (record.last_at if record else None) or _last(history),
        outcome=attempts[-1].outcome if attempts else "",
        exits=record.outcome if record else "",
        attempts=len(attempts),
    )


def _attempts(id: str, snapshot: Snapshot) -> list[tuple[AttemptGoodput, JobGoodput]]:
    return [(one, job) for job in snapshot.goodput for one in job.newest if one.run == id]


def _began(
    record: RunSummary | None, history: RunHistory | None, attempts: list[AttemptGoodput]
) -> float | None:
    known = [one.began for one in attempts]
    known += [one.started_at for one in (record, history) if one is not None and one.started_at]
    return min(known, default=None)


def _last(history: RunHistory | None) -> float | None:
    return history.span[1] if history is not None and history.span is not None else None


def _end(one: PastRun) -> str:
    """`failed: killed by SIGKILL (9) (1 of 4 ranks)`, or `ended`, as far as it is known."""
    words = ENDS.get(one.outcome, ENDS["unknown"])
    exits = clean(one.exits, 120)
    return f"{words}: {exits}" if exits and one.outcome != "well" else words


def _ago(one: PastRun, snapshot: Snapshot) -> str:
    return f"{duration_words(max(0, int(snapshot.at - one.ended)))} ago" if one.ended else ""


def _ran(one: PastRun) -> str:
    if one.began is None or one.ended is None:
        return ""
    return duration_words(max(0, round(one.ended - one.began)))


def _row(one: PastRun, snapshot: Snapshot) -> PastRunRow:
    history, ran = history_of(snapshot.histories, one.id), _ran(one)
    many = plural(one.ranks, "rank") if one.ranks else ""
    return PastRunRow(
        id=one.id,
        name=clean(one.name, 60),
        who=", ".join(filter(None, (many, clean(one.user, 40)))),
        css_class=CSS.get(one.outcome, "quiet"),
        end=f"{_end(one)}{f' after {ran}' if ran else ''}",
        when=rfc3339(one.ended) if one.ended else "",
        ago=_ago(one, snapshot),
        sparklines=sparklines(history) if history else (),
    )


def _facts(one: PastRun, history: RunHistory | None) -> Iterator[RunFact]:
    if ran := _ran(one):
        yield RunFact(name="Ran for", text=ran)
    steps = [step for step in (history.steps if history else ()) if step is not None]
    if steps:
        yield RunFact(name="Last step", text=f"{steps[-1]:,}")
    losses = [value for _, value in (history.series(LOSS) if history else ()) if value is not None]
    if losses:
        yield RunFact(name="Last loss", text=f"{losses[-1]:.4g}")
    if one.ranks:
        yield RunFact(name="Ranks", text=f"{one.ranks:,}")
    if one.user:
        yield RunFact(name="Started by", text=clean(one.user, 40))
    if one.script:
        yield RunFact(name="Script", text=clean(one.script, 80))
    if one.attempts > 1:
        yield RunFact(name="Attempts", text=f"{one.attempts:,}")


def _goodput(id: str, snapshot: Snapshot) -> tuple[str, ...]:
    """Of the last attempt, and of its whole job where there was more."""
    found = _attempts(id, snapshot)
    return tuple(clean(line, 400) for line in summary_lines(*found[-1])) if found else ()
