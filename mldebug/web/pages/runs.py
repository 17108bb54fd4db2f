"""All runs of this node: how far each is, how fast, and why it is quiet or not."""

from collections.abc import Collection
from itertools import islice

import msgspec

from mldebug.alerts.status_lines import event_lines
from mldebug.core.plugins import NoOptions
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.redact import clean
from mldebug.core.text import rfc3339
from mldebug.goodput.scalars.history import history_of
from mldebug.hardware.host_memory.state import alarms
from mldebug.incidents.report_entry import ReportEntry
from mldebug.jobs.schedulers.status_lines import orphan_line, scheduler_lines
from mldebug.stall.sentences import seconds
from mldebug.status.gpu_lines import StatusLine, hardware_lines
from mldebug.status.run_lines import ailing_lines, css_class, pace_words, state_words
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.web.charts import Chart, sparklines
from mldebug.web.incident_list import IncidentRow as Incident
from mldebug.web.incident_list import rows_of
from mldebug.web.page import PageRequest, WebPage
from mldebug.web.past_runs import PastRunRow, past_rows

MOST = 500  # rows
FEW, LATELY = 5, 86_400.0  # incidents of runs that are over, and for how many seconds
PAST = 20  # runs that are over
NEWS = 600.0  # seconds for which an event of the node stands above the runs


class RunListRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list of runs."""

    id: str
    name: str
    who: str  # launcher, user, attempt
    ranks: str  # "4 of 4 ranks"
    which: str  # "ranks 0-3"
    pace: tuple[str, ...]
    each: str  # "0.4 s per step", or ""
    sparklines: tuple[Chart, ...] = ()
    state: str
    css_class: str  # good, quiet, bad
    incident: str = ""
    verdict: str = ""
    report: str = ""
    written: bool = False  # is its report on disk?
    before: Incident | None = None  # the newest report of an incident that is over


class RunsPageData(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of the page of all runs shows."""

    rows: tuple[RunListRow, ...]
    more: int
    open: int  # incidents
    notes: tuple[StatusLine, ...]  # of the node, the bad ones first
    earlier: tuple[StatusLine, ...]  # what happened on the node some time ago, the newest first
    over: tuple[Incident, ...]
    past: tuple[PastRunRow, ...] = ()  # runs that are over


class RunsPage:
    """The page "Runs": the jobs of this node and their ranks, as `mldebug status` prints them."""

    title = "Runs"
    key = "r"
    reports = True

    def build(self, request: PageRequest) -> RunsPageData:
        """The page's data: runs with an incident first, then quiet ones, then the others."""
        snapshot = request.snapshot
        newest = {entry.job_id: entry for entry in reversed(request.entries)}
        written = {one.id for one in request.entries}
        made = [_row(run, snapshot, newest.get(run.id), written) for run in snapshot.runs]
        rows = sorted(made, key=lambda row: ("bad", "quiet", "good").index(row.css_class))
        over = _over(request)
        lines = _notes(snapshot, {one.id for one in over})
        old = [one for one in lines if one.at is not None and snapshot.at - one.at > NEWS]
        return RunsPageData(
            rows=tuple(rows[:MOST]),
            more=max(0, len(rows) - MOST),
            open=sum(bool(run.incident) for run in snapshot.runs),
            notes=tuple(
                sorted((one for one in lines if one not in old), key=lambda line: not line.bad)
            ),
            earlier=tuple(sorted(old, key=lambda line: -(line.at or 0.0))),
            over=over,
            past=past_rows(snapshot, PAST),
        )


def _over(request: PageRequest) -> tuple[Incident, ...]:
    """The newest reports of runs that are over, so that a person who was alerted finds them, beside how quiet the node is now."""
    snapshot, alive = request.snapshot, {run.id for run in request.snapshot.runs}
    first, last = (
        rfc3339(snapshot.at + by) for by in (-LATELY, LATELY)
    )  # clocks of nodes may differ
    gone = (entry for entry in request.entries if entry.job_id not in alive and entry.kind in ("stall", "abnormal_end", "slowdown"))  # fmt: skip
    return rows_of(islice((one for one in gone if first <= one.time <= last), FEW), snapshot)


def _row(
    run: RunState, snapshot: Snapshot, newest: ReportEntry | None, written: Collection[str]
) -> RunListRow:
    before = rows_of([newest], snapshot)[0] if newest and not run.incident else None
    here = len(run.ranks)
    history = history_of(snapshot.histories, run.id)
    return RunListRow(
        id=run.id,
        name=clean(run.name, 60),
        who=", ".join(_who(run)),
        ranks=f"{here:,} of {run.world_size:,} ranks",
        which=f"ranks {shorten_ranks(fold_ranks(run.ranks), 40)}" if here else "no rank lives here",
        pace=tuple(clean(one, 120) for one in pace_words(run)),
        each=f"{seconds(run.step_seconds)} per step" if run.step_seconds else "",
        sparklines=sparklines(history) if history else (),
        state=clean(state_words(run, brief=bool(run.report)), 400),
        css_class=css_class(run),
        incident=run.incident,
        verdict=run.verdict,
        report=clean(run.report, 400),
        written=run.incident in written,
        before=before,
    )


def _who(run: RunState) -> tuple[str, ...]:
    attempt = (f"attempt {run.attempt}",) if run.attempt else ()
    return (clean(run.launcher, 40), f"user {clean(run.user, 40) or run.uid}", *attempt)


def _notes(snapshot: Snapshot, below: Collection[str]) -> list[StatusLine]:
    """What `status` says above the jobs. `below`: ids of reports that the page lists anyway."""
    shown = {run.incident for run in snapshot.runs} | {*below}
    events = event_lines(snapshot.events, shown, snapshot.at)
    found = [StatusLine(f"other nodes: {snapshot.cluster}")] if snapshot.cluster else []
    found += [StatusLine(line, True) for line in events]
    found += [StatusLine(line, True) for line in ailing_lines(snapshot)]
    found += [
        StatusLine(line, True) for line in (alarms(snapshot.memory) if snapshot.memory else ())
    ]
    found += [
        StatusLine(line, bad) for line, bad in scheduler_lines(snapshot.schedulers, snapshot.at)
    ]
    found += [StatusLine(orphan_line(one, snapshot.at), True) for one in snapshot.orphans or ()]
    found += hardware_lines(snapshot, snapshot.at)
    return [StatusLine(clean(one.text.strip(), 400), one.bad, one.at) for one in found]


def create(options: NoOptions) -> WebPage:
    """Build the web page `runs`: all runs of this node: how far each is, how fast, and why it is quiet or not."""
    return RunsPage()
