"""What probes have measured on this node, series by series: what has shifted comes first, with its verdict."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.units import duration_words, format_size
from mldebug.probes.history import SHARE, JudgedSeries, SeriesTrend, change_words, figures
from mldebug.status.probe_lines import common, dated, moment, verdict
from mldebug.status.run_lines import ailing_lines
from mldebug.status.snapshot import Snapshot
from mldebug.web.page import PageRequest, WebPage

MOST = 500  # series
WIDTH, HEIGHT, EDGE = 120.0, 28.0, 2.0  # of a drawing
NONE = "No probe has been kept here."
NOT_YET = "The history of probes is not known: the agent has not read it, or could not."
MOODS = {SeriesTrend.SHIFTED: "bad", SeriesTrend.STEADY: "good", SeriesTrend.IMPROVED: "good"}
COMMANDS = ("mldebug probe collectives", "mldebug probe node")
NAMER = "mldebug probe isolate"


class Sparkline(msgspec.Struct, frozen=True, kw_only=True):
    """A small drawing of the last speeds, in SVG units: the line, the band of usual values, the last run. `words`: for those who cannot see it."""

    line: str  # "x,y x,y …"
    last: tuple[float, float]
    band: tuple[float, float] | None  # y and height
    words: str


class SeriesRow(msgspec.Struct, frozen=True, kw_only=True):
    """One series of measurements as texts for the page. `css_class`: CSS class."""

    op: str
    size: str
    verdict: str
    css_class: str
    when: str
    ago: str
    runs: int
    figures: str
    change: str  # "" where nothing has changed
    spark: Sparkline | None


class SeriesGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Series of measurements that differ only in op and size."""

    title: str
    rows: tuple[SeriesRow, ...]


class ProbesPageData(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of the page "Probes" shows."""

    lead: str
    bad: bool
    last: str  # when the newest run was
    nothing: str
    notes: tuple[str, ...]
    headings: tuple[SeriesGroup, ...]
    more: int
    commands: tuple[str, ...]


class ProbesPage:
    """The page "Probes": earlier measurements of this node, as `mldebug probe history` prints them."""

    title = "Probes"
    key = "p"
    reports = False

    def build(self, request: PageRequest) -> ProbesPageData:
        """The page's data, from the probe history in the agent's snapshot."""
        snapshot = request.snapshot
        judged = snapshot.probes or ()
        shifted = sum(one.standing is SeriesTrend.SHIFTED for one in judged)
        return ProbesPageData(
            lead=_lead(judged, shifted),
            bad=bool(shifted),
            last=_last(judged, snapshot.at),
            nothing="" if judged else NONE if snapshot.probes is not None else NOT_YET,
            notes=tuple(_notes(snapshot)),
            headings=_headings(judged[:MOST], snapshot.at),
            more=max(0, len(judged) - MOST),
            commands=(NAMER, *COMMANDS) if shifted else COMMANDS,
        )


def _lead(judged: Sequence[JudgedSeries], shifted: int) -> str:
    count = f"{len(judged):,} series"
    if not judged:
        return "No probe to show"
    if not shifted:
        return f"{count}, none has shifted"
    return f"{shifted:,} of {count} {'has' if shifted == 1 else 'have'} shifted"


def _last(judged: Sequence[JudgedSeries], now: float) -> str:
    if not judged:
        return ""
    newest = max(judged, key=lambda one: one.last[-1].at)
    return f"the last probe ran {_ago(newest, now)} ({moment(newest)})"


def _ago(one: JudgedSeries, now: float) -> str:
    if not dated(one):
        return "some time ago"
    seconds = max(0, int(now - one.last[-1].at))
    if seconds >= 86_400:
        days = seconds // 86_400
        return f"{days} {'day' if days == 1 else 'days'} ago"
    return f"{duration_words(seconds // 60 * 60 or seconds)} ago"


def _notes(snapshot: Snapshot) -> Iterator[str]:
    mine = tuple(source for source in snapshot.sources if source.name == "probes")
    bare = Snapshot(node="", at=0.0, started_at=0.0, sources=mine)
    yield from (clean(line, 300) for line in ailing_lines(bare))


def _headings(judged: Sequence[JudgedSeries], now: float) -> tuple[SeriesGroup, ...]:
    """In the order of their first series: shifted ones come first."""
    found: dict[str, list[SeriesRow]] = {}
    for one in judged:
        found.setdefault(common(one.series), []).append(_row(one, now))
    return tuple(SeriesGroup(title=title, rows=tuple(rows)) for title, rows in found.items())


def _row(one: JudgedSeries, now: float) -> SeriesRow:
    return SeriesRow(
        op=clean(one.series.op, 40),
        size=format_size(one.series.bytes) if one.series.bytes else "",
        verdict=_verdict(one),
        css_class=MOODS.get(one.standing, "quiet"),
        when=moment(one),
        ago=_ago(one, now),
        runs=one.runs,
        figures=figures(one),
        change=change_words(one),
        spark=_spark(one),
    )


def _verdict(one: JudgedSeries) -> str:
    return verdict(one).replace("_", " ")


# --- the drawing ---------------------------------------------------------------------------------


def _spark(one: JudgedSeries) -> Sparkline | None:
    """Speeds from the oldest to the newest, more above less, with the band of the usual behind them; None for one run."""
    speeds = one.speeds
    band = [each for each in (one.low, one.high) if each is not None]
    if len(speeds) < 2 or not all(map(math.isfinite, (*speeds, *band))):
        return None
    level = median(speeds)  # where nobody knows yet what is usual, noise is not drawn large
    every = (*speeds, *band, level * (1 - SHARE), level * (1 + SHARE))
    ends = min(every), max(every)
    step = (WIDTH - 2 * EDGE) / (len(speeds) - 1)
    points = [(round(EDGE + at * step, 1), _height(speed, ends)) for at, speed in enumerate(speeds)]
    heights = [_height(each, ends) for each in band]
    return Sparkline(
        line=" ".join(f"{x:g},{y:g}" for x, y in points),
        last=points[-1],
        band=(heights[1], round(heights[0] - heights[1], 1)) if len(heights) == 2 else None,
        words=f"the last {len(speeds)} runs, {_verdict(one)}",
    )


def _height(speed: float, ends: tuple[float, float]) -> float:
    """From above; of runs that are all alike the middle."""
    low, high = ends
    share = (high - speed) / (high - low) if high > low else 0.5
    return round(EDGE + (HEIGHT - 2 * EDGE) * share, 1)


def create(options: NoOptions) -> WebPage:
    """Build the web page `probes`: what probes have measured on this node, series by series: what has shifted comes first, with its verdict."""
    return ProbesPage()
