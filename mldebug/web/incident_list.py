"""Reports as rows of a list. Pure."""

from collections.abc import Iterable

import msgspec

from mldebug.core.model import Verdict
from mldebug.core.redact import clean
from mldebug.incidents.report.wording import NOT_STUCK, title
from mldebug.incidents.report_entry import ReportEntry
from mldebug.status.snapshot import Snapshot

KINDS = {
    "stall": "stall",
    "abnormal_end": "abnormal end",
    "slowdown": "slowdown",
    "manual": "asked for",
}
STATES = {"open": "never closed", "recovered": "recovered", "ended": "job ended"}


class IncidentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A report in the list of incidents."""

    id: str
    verdict: str
    confidence: str
    kind: str
    state: str
    open: bool
    sentence: str
    when: str  # RFC 3339
    job: str
    run: str = ""  # the id of the run, whose page outlives it
    user: str
    ranks: int
    broken: str = ""


def rows_of(entries: Iterable[ReportEntry], snapshot: Snapshot) -> tuple[IncidentRow, ...]:
    """Rows for the list of reports, in their order.

    A report that is not closed counts as open only while a run has that incident now.
    """
    alive = {run.incident for run in snapshot.runs} - {""}
    return tuple(_row(entry, entry.id in alive) for entry in entries)


def _row(one: ReportEntry, alive: bool) -> IncidentRow:
    return IncidentRow(
        id=one.id,
        verdict=_verdict(one),
        confidence=clean(one.confidence, 10),
        kind=KINDS.get(one.kind, clean(one.kind, 20)),
        state=_state(one, alive),
        open=alive,
        sentence=clean(one.sentence, 400),
        when=clean(one.time, 40),
        job=clean(one.job, 60),
        run=one.job_id,
        user=clean(one.user, 40),
        ranks=one.ranks,
        broken=clean(one.broken, 300),
    )


def _state(one: ReportEntry, alive: bool) -> str:
    if alive:
        return "open"
    return STATES.get(one.state, clean(one.state, 20)) if one.kind != "manual" else ""


def _verdict(one: ReportEntry) -> str:
    name = one.verdict
    if name == Verdict.UNKNOWN and one.sentence.startswith(NOT_STUCK):
        return NOT_STUCK
    try:
        return title(Verdict(name))
    except ValueError:  # a report that somebody else wrote
        return clean(name, 40)
