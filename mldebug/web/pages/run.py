"""One run: its ranks as a grid, how far it is, and why it is quiet or not."""

import shlex
from collections.abc import Iterable, Iterator

import msgspec

from mldebug.core.model import Gap
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.text import typed
from mldebug.goodput.scalars.history import history_of
from mldebug.stall.sentences import seconds
from mldebug.status.gpu_lines import rank_lines
from mldebug.status.gpu_view import names_of
from mldebug.status.run_lines import css_class, goodput_words, pace_words, state_words
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.storage.checkpoints.state import lines_of
from mldebug.web.charts import Chart, EventLine, charts, event_lines, span_words
from mldebug.web.incident_list import IncidentRow, rows_of
from mldebug.web.page import PageRequest, WebPage
from mldebug.web.past_runs import PastRunPageData, RunFact, past_page
from mldebug.web.rank_grid import RankGrid, grid
from mldebug.web.run_gpus import RunGpus, run_gpus

REPORTS = 10


class QuietTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long the run has been quiet, compared with what counts as a stall."""

    ratio: float
    text: str


class RunPageData(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of one run's page shows while the run lives."""

    over: bool = False
    id: str
    name: str
    css_class: str
    state: str
    report: str  # the sentence of the open incident
    incident: str
    written: bool  # is its report on disk?
    silence: QuietTime | None
    facts: tuple[RunFact, ...]
    charts: tuple[Chart, ...]
    span: str  # of the charts, in words
    events: tuple[EventLine, ...]  # in its figures, the newest first
    grid: RankGrid
    gpus: RunGpus
    lines: tuple[str, ...]  # GPUs, saves
    kernel: tuple[str, ...]
    traps: tuple[str, ...]
    gaps: tuple[Gap, ...]
    reports: tuple[IncidentRow, ...]
    unread: str
    commands: tuple[str, ...]


class RunPage:
    """The page of one run, found by its id."""

    title = "Run"
    key = ""
    reports = True

    def build(self, request: PageRequest) -> RunPageData | PastRunPageData | None:
        """The page's data, of a run that is over as far as it is kept; None where the user has no run with this id."""
        snapshot = request.snapshot
        run = next((one for one in snapshot.runs if one.id == request.id), None)
        if run is None:
            return past_page(request)
        history = history_of(snapshot.histories, run.id)
        mine = [entry for entry in request.entries if entry.job_id == run.id]
        return RunPageData(
            id=run.id,
            name=clean(run.name, 60),
            css_class=css_class(run),
            state=clean(state_words(run, brief=bool(run.report)), 400),
            report=clean(run.report, 400),
            incident=run.incident,
            written=any(one.id == run.incident for one in mine),
            silence=_silence(run),
            facts=tuple(_facts(run)),
            charts=charts(history) if history else (),
            span=span_words(history) if history else "",
            events=event_lines(history) if history else (),
            grid=grid(run, names_of(snapshot.gpus)),
            gpus=run_gpus(snapshot, run),
            lines=tuple(clean(one, 400) for one in _lines(run)),
            kernel=tuple(
                clean(one, 400) for one in rank_lines(snapshot.kernel_events, run, snapshot.at)
            ),
            traps=tuple(clean(trap.line(), 600) for trap in run.traps[:8]),
            gaps=tuple(_gaps(snapshot, run)),
            reports=rows_of(mine[:REPORTS], snapshot),
            unread=request.unread,
            commands=(typed(f"dump --job {shlex.quote(clean(run.id, 80))}"),),
        )


def _silence(run: RunState) -> QuietTime | None:
    if run.incident or not run.timeout_seconds:
        return None
    ratio = min(1.0, run.quiet_seconds / run.timeout_seconds)
    text = f"quiet for {seconds(run.quiet_seconds)}, a stall after {seconds(run.timeout_seconds)}"
    return QuietTime(ratio=ratio, text=text)


def _facts(run: RunState) -> Iterator[RunFact]:
    if pace := ", ".join(clean(one, 120) for one in pace_words(run)):
        yield RunFact(name="Progress", text=pace)
    if run.step_seconds:
        yield RunFact(name="Pace", text=f"{seconds(run.step_seconds)} per step")
    yield RunFact(name="Ranks here", text=f"{len(run.ranks):,} of {run.world_size:,}")
    user = clean(run.user, 40) or str(run.uid)
    yield RunFact(name="Started by", text=f"{user}, {clean(run.launcher, 40)}")
    if run.attempt:
        yield RunFact(name="Attempt", text=str(run.attempt))
    yield RunFact(name="Log", text=clean(run.log, 200) or "no log found")


def _lines(run: RunState) -> Iterable[str]:
    return (
        *([run.devices] if run.devices else []),
        *goodput_words(run),
        *lines_of(run.checkpoint_series, run.id),
    )


def _gaps(snapshot: Snapshot, run: RunState) -> Iterator[Gap]:
    """Of its own processes, each reason once."""
    pids, shown = {*run.ranks.values()}, set()
    for gap in snapshot.gaps:
        key = (gap.what, gap.reason, gap.way_out)
        if gap.pid in pids and key not in shown:
            shown.add(key)
            yield Gap(
                what=clean(gap.what, 80),
                reason=clean(gap.reason, 300),
                way_out=clean(gap.way_out, 200),
            )


def create(options: NoOptions) -> WebPage:
    """Build the web page `run`: one run: its ranks as a grid, how far it is, and why it is quiet or not."""
    return RunPage()
