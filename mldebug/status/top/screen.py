"""The screen of `mldebug top` as lines, for a terminal of any size. Pure.

Each section (alerts, runs, ranks, GPUs, storage) gets its share of the height; one that does not fit says how many lines are missing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mldebug.core.model import GpuBrief, NodeBrief, RankBrief
from mldebug.core.ranksets import fold_nodes, shorten_ranks
from mldebug.core.redact import clean
from mldebug.core.text import plural
from mldebug.core.units import percent
from mldebug.status.gpu_table import out_of
from mldebug.status.merged_runs import RunOnNodes, ViewedNodes, merge_runs
from mldebug.status.top.columns import Column, fit, table
from mldebug.status.top.keys import TopState

GIB = 1 << 30
BAR = 10  # characters
FOOTER = "d dump  p profile  o report  up/down run  ? help  q quit"
NO_AGENT = "no agent watches: steps, waits and stalls are not known (mldebug up)"

RUNS = (
    Column("", 99, most=1), Column("RUN", 90), Column("USER", 10, most=10), Column("NODES", 30, most=18),
    Column("RANKS", 60, most=20), Column("STEP", 80, right=True), Column("STEP/S", 70, right=True),
    Column("LOSS", 20, right=True), Column("STATE", 95, most=200),
)  # fmt: skip
RANKS = (
    Column("RANK", 90, right=True), Column("NODE", 30, most=16), Column("STATE", 80, most=16), Column("STEP", 70, right=True),
    Column("WAITS", 60, right=True), Column("GPU", 40, right=True), Column("DOING", 50, most=200),
)  # fmt: skip
GPUS = (
    Column("NODE", 20, most=16), Column("GPU", 90, right=True), Column("BUSY", 80, most=20), Column("MEMORY", 60, right=True),
    Column("POWER", 50, right=True), Column("TEMP", 40, right=True), Column("USED BY", 30, most=14), Column("HEALTH", 70),
)  # fmt: skip


class TopLine(NamedTuple):
    """A line of the screen. `style`: as Rich writes it; "" for plain text."""

    text: str
    style: str = ""


class TopInput(NamedTuple):
    """All that is shown. `rates`: steps per second by id of the run; `clock`: of the day, as text; `age`: seconds since the look."""

    nodes: ViewedNodes
    rates: Mapping[str, float]
    clock: str
    age: float = 0.0
    here: bool = True  # one node, that on which it runs
    plain: bool = False  # characters of ASCII alone


class _Section(NamedTuple):
    """Lines below headings that stay when the rest is cut or scrolled."""

    head: list[TopLine]
    lines: list[TopLine]
    scroll: int = 0


def chosen(runs: Sequence[RunOnNodes], state: TopState) -> RunOnNodes | None:
    """The run that a person has chosen, or the first."""
    return next((one for one in runs if one.first.id == state.run), runs[0] if runs else None)


def screen(shown: TopInput, state: TopState, width: int, height: int) -> list[TopLine]:
    """Exactly `height` lines of at most `width` columns."""
    if state.pane is not None:
        body = _pane(state, width, height - 1)
    else:
        body = [_title(shown, width), *_body(shown, state, width, height - 2)]
    body = body[: height - 1]
    body += [TopLine("")] * (height - 1 - len(body))
    return [*body, _footer(state, width)][:height]


def _footer(state: TopState, width: int) -> TopLine:
    if state.message:
        return TopLine(fit(clean(state.message, 300), width), "yellow")
    if state.busy:
        return TopLine(fit(f"{state.busy} …", width), "yellow")
    words = "up/down scroll  Esc back" if state.pane is not None else FOOTER
    return TopLine(fit(words, width), "dim")


def _pane(state: TopState, width: int, height: int) -> list[TopLine]:
    title, lines = state.pane or ("", ())
    kept = lines[state.scroll : state.scroll + height - 1]
    return [TopLine(fit(title, width), "bold"), *(TopLine(fit(line, width)) for line in kept)]


def _title(shown: TopInput, width: int) -> TopLine:
    nodes = shown.nodes.answers
    runs = merge_runs(nodes)
    incidents = sum(bool(run.first.incident) for run in runs)
    ranks = sum(len(run.ranks) for run in runs)
    names = shorten_ranks(fold_nodes(node.node for node in nodes), 30) or "-"
    parts = [f"mldebug top  {names}  {shown.clock}"]
    parts.append(plural(incidents, "incident") if incidents else "no incident")
    parts += [plural(len(runs), "run"), plural(ranks, "rank")]
    age = max([shown.age + node.age for node in nodes], default=shown.age)
    if age > 2.0:
        parts.append(f"{age:.0f} s old")
    return TopLine(fit("  ".join(parts), width), "bold red" if incidents else "bold")


def _body(shown: TopInput, state: TopState, width: int, height: int) -> list[TopLine]:
    runs = merge_runs(shown.nodes.answers)
    run = chosen(runs, state)
    sections = [
        _alerts(shown, width),
        _runs(runs, run, shown.rates, width),
        _ranks(run, state.scroll, width) if run else None,
        _gpus(shown, width),
        _storage(shown.nodes.answers, width),
    ]
    return _fitted([one for one in sections if one is not None and one.head + one.lines], height)


def _fitted(sections: Sequence[_Section], height: int) -> list[TopLine]:
    """Each gets its headings and one line, as long as there is room for both, then one more in turns until the height is used."""
    given = [0] * len(sections)
    wanted = [len(one.head) + len(one.lines) for one in sections]
    for number, one in enumerate(sections):
        least = len(one.head) + min(1, len(one.lines))
        given[number] = least if sum(given) + least <= height else 0
    while sum(given) < min(
        height, sum(some for some, has in zip(wanted, given, strict=True) if has)
    ):
        for number, most in enumerate(wanted):
            if 0 < given[number] < most and sum(given) < height:
                given[number] += 1
    return [line for one, lines in zip(sections, given, strict=True) for line in _cut(one, lines)]


def _cut(section: _Section, lines: int) -> list[TopLine]:
    room = lines - len(section.head)
    if room <= 0:
        return section.head[:lines]
    scroll = min(section.scroll, max(0, len(section.lines) - room))
    rest = section.lines[scroll:]
    if len(rest) <= room or room == 1:  # better one line than the word that there are more
        return [*section.head, *rest[:room]]
    return [*section.head, *rest[: room - 1], TopLine(f"  … {len(rest) - room + 1} more", "dim")]


# --- sections --------------------------------------------------------------------------------------


def _alerts(shown: TopInput, width: int) -> _Section:
    """What is wrong: nodes that do not answer first."""
    lines = [f"{node} does not answer: {why}" for node, why in sorted(shown.nodes.silent.items())]
    for node in shown.nodes.answers:
        where = "" if shown.here else f"{node.node}: "
        trouble = node.agent_trouble or (NO_AGENT if node.agent_seconds is None else "")
        lines += [f"{where}{one}" for one in (trouble, *node.alerts, *node.storage_alerts) if one]
    return _Section([], [TopLine(fit(f"! {clean(line, 400)}", width), "yellow") for line in lines])


def _runs(
    runs: Sequence[RunOnNodes], run: RunOnNodes | None, rates: Mapping[str, float], width: int
) -> _Section:
    if not runs:
        return _Section([], [TopLine("no training job runs here")])
    rows = [_run_row(one, one is run, rates.get(one.first.id)) for one in runs]
    head, *lines = table(RUNS, rows, width)
    styles = [("bold " if one is run else "") + ("red" if one.first.incident else "") for one in runs]  # fmt: skip
    shown = [TopLine(line, style.strip()) for line, style in zip(lines, styles, strict=True)]
    return _Section([TopLine(head, "dim")], shown)


def _run_row(run: RunOnNodes, is_chosen: bool, rate: float | None) -> tuple[str, ...]:
    first = run.first
    return (
        ">" if is_chosen else "",
        clean(first.name, 24),
        clean(first.user, 20),
        shorten_ranks(fold_nodes(run.nodes), 18),
        run.rank_words(),
        "-" if run.step is None else f"{run.step:,}",
        "-" if rate is None else f"{rate:.2f}" if rate < 10 else f"{rate:.0f}",
        "-" if first.loss is None else f"{first.loss:.4g}",
        _run_state(run),
    )


def _run_state(run: RunOnNodes) -> str:
    first = run.first
    if first.incident:
        return f"STALLED: {clean(first.report, 400)}" if first.report else "STALLED"
    if run.absent:
        return f"{plural(run.absent, 'rank')} missing"
    if first.slowness:
        return "slowed by a rank"
    return clean(first.stage, 20) or "not watched"


def _ranks(run: RunOnNodes, scroll: int, width: int) -> _Section:
    """What its agent says of the run, then its ranks: culprits, slow ones and those that ended first."""
    first = run.first
    words = (first.report if first.incident else first.sentence, first.slowness, first.data_wait)
    bad = "red" if first.incident else ""
    head = [
        TopLine(fit(f"{clean(first.name, 60)}: {clean(one, 400)}", width), bad)
        for one in words
        if one
    ]
    ordered = sorted(run.ranks, key=lambda one: (not _is_odd(one[1]), one[1].rank))
    rows = [_rank_row(node, rank) for node, rank in ordered]
    if not rows:
        return _Section(head, [])
    columns, picked = _without_node(RANKS, rows, 1, len(run.nodes) > 1)
    title, *lines = table(columns, picked, width)
    shown = [TopLine(line, "red" if _is_odd(rank) else "") for line, (_, rank) in zip(lines, ordered, strict=True)]  # fmt: skip
    return _Section([*head, TopLine(title, "dim")], shown, scroll)


def _without_node(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], at: int, several: bool
) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """Where all is on one node, its name stands nowhere."""
    if several:
        return columns, rows
    return [*columns[:at], *columns[at + 1 :]], [[*row[:at], *row[at + 1 :]] for row in rows]


def _is_odd(rank: RankBrief) -> bool:
    return rank.culprit or rank.slow or rank.state == "exited"


def _rank_row(node: str, rank: RankBrief) -> tuple[str, ...]:
    state = clean(f"{rank.state}, slow" if rank.slow else rank.state, 30)
    return (
        str(rank.rank),
        clean(node, 60),
        f"{state} <<" if rank.culprit else state,
        "-" if rank.step is None else f"{rank.step:,}",
        "-" if rank.waits is None else percent(rank.waits),
        "-" if rank.gpu is None else str(rank.gpu),
        clean(rank.doing, 100),
    )


def _gpus(shown: TopInput, width: int) -> _Section:
    found = [(node.node, gpu) for node in shown.nodes.answers for gpu in node.gpus]
    if not found:
        notes = {node.gpu_note for node in shown.nodes.answers if node.gpu_note}
        return _Section([], [TopLine(fit(f"GPUs: {clean(one, 200)}", width), "dim") for one in sorted(notes)])  # fmt: skip
    ordered = sorted(found, key=lambda one: one[1].state not in ("missing", "unhealthy"))
    rows = [_gpu_row(node, gpu, shown.plain) for node, gpu in ordered]
    columns, picked = _without_node(GPUS, rows, 0, len(shown.nodes.answers) > 1)
    head, *lines = table(columns, picked, width)
    styles = ["red" if gpu.state in ("missing", "unhealthy") else "" for _, gpu in ordered]
    return _Section([TopLine(head, "dim")], [TopLine(*one) for one in zip(lines, styles, strict=True)])  # fmt: skip


def _gpu_row(node: str, gpu: GpuBrief, plain: bool) -> tuple[str, ...]:
    return (
        clean(node, 60),
        str(gpu.index),
        bar(gpu.busy, plain),
        out_of(gpu.memory_used, gpu.memory_total, GIB, "GiB"),
        out_of(gpu.watts, gpu.limit_watts, 1, "W"),
        "-" if gpu.celsius is None else f"{gpu.celsius:.0f} °C",
        clean(gpu.user, 20) or "-",
        clean(gpu.state, 12),
    )


def bar(ratio: float | None, plain: bool) -> str:
    """A ratio from 0 to 1 as a bar with its percentage; "-" where it is not known."""
    if ratio is None:
        return "-"
    full, empty = ("#", ".") if plain else ("█", "░")
    filled = max(0, min(BAR, round(BAR * ratio)))
    return f"{full * filled}{empty * (BAR - filled)} {100 * ratio:3.0f} %"


def _storage(nodes: Sequence[NodeBrief], width: int) -> _Section:
    """A line for each filesystem; nodes that mount the same say the same."""
    lines = dict.fromkeys(line for node in nodes for line in node.storage)
    return _Section([], [TopLine(fit(f"disk: {clean(line, 300)}", width)) for line in lines])
