"""The report as one HTML file that can be read from disk, on a phone, on paper and without JavaScript.

The rank table is also embedded as compact columns, which JavaScript sorts, filters and shows.
Without JavaScript at most 256 of its rows are shown.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from mldebug.core import text
from mldebug.core.model import Culprit, Group
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import GapView, RankView, Report
from mldebug.goodput.account.run_summary import view_lines
from mldebug.incidents import course, decide
from mldebug.incidents.report import (
    changes,
    exit_story,
    hardware,
    hook_lines,
    rank_map,
    stack_tree,
    wording,
)
from mldebug.incidents.report.hook_lines import step_words
from mldebug.incidents.report.rank_map import NODE_GAP, PITCH, MapLegendEntry, kind_indices
from mldebug.incidents.report.sanitize import tidy_report

FOLDER = Path(__file__).with_name("templates")
TABLE_ROWS = 256  # rows in the file itself; JavaScript shows the others from the data
FEW_ROWS = 16  # of a large job in which all but a few do the same
MAX_GROUPS = 64
MAX_GAPS = 200
SHOWN_FRAMES = 6
LONG_SENTENCE = 170


@dataclass(frozen=True, slots=True)
class GroupCard:
    """One group of ranks for the HTML page. `index`: its number in the report. `look`: colour and words of its role. `ranks`:
    shortened, `"0-2,7"`.
    """

    index: int
    group: Group
    look: wording.RoleStyle
    ranks: str
    culprit: bool


class GapRow(NamedTuple):
    """One line of the report's list "what is missing"; entries that are equal for several ranks are joined.

    `where`: the ranks or the pid, "" for neither.
    """

    gap: GapView
    where: str


class ReportPage(NamedTuple):
    """A report as the agent's web server sends it."""

    html: str
    policy: str  # its Content-Security-Policy, for the header


class SiteLink(NamedTuple):
    """One entry of the menu of the site in which a report is shown."""

    title: str
    url: str


class ReportSite(NamedTuple):
    """What stands around a report that a site shows, so that a reader can go on from it."""

    menu: tuple[SiteLink, ...] = ()
    trail: tuple[SiteLink, ...] = ()  # the pages above this one, the outermost first


def render_html(report: Report) -> str:
    """The report as one HTML file. It loads nothing from elsewhere, and no text of the job can become markup."""
    return _template().render(_view(tidy_report(report)))


def render_page(report: Report, site: ReportSite) -> ReportPage:
    """The report as `render_html` gives it, below the menu of the site that shows it."""
    shown = _view(tidy_report(report)) | {"site": site}
    return ReportPage(_template().render(shown), shown["policy"])


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy that allows this style and script (by SHA-256) and images in data: URLs, and nothing else."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def embed(value: object) -> Markup:
    """Encode a value as JSON for a script element, with `<`, `>` and `&` escaped so that it cannot close the element."""
    text = msgspec.json.encode(value).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704 - the loop above is the escaping


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def templates(
    folder: Path, filters: Mapping[str, Callable[..., Any]], **names: object
) -> Environment:
    """The Jinja environment of a folder of templates.

    Values are escaped, and a name that does not exist is an error.

    `filters` and `names` are added to those that all pages share.
    """
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plural": text.plural, "moment": text.moment, **filters}
    environment.globals |= {"W": wording, **names}
    return environment


@cache
def _template() -> Template:
    filters = {"steps": hook_lines.step_words, "trace_title": hook_lines.trace_title}
    world = templates(FOLDER, filters, SHOWN_FRAMES=SHOWN_FRAMES)
    return world.get_template("report.html.j2")


def _view(report: Report) -> dict[str, Any]:
    """Everything the template shows, worked out; it only lays out."""
    style, script = (FOLDER / "report.css").read_text(), (FOLDER / "report.js").read_text()
    legend = rank_map.kinds(report.ranks)
    large = len(report.ranks) > rank_map.MAX_CELLS
    culprits = [one.rank for one in report.ranks if one.culprit]
    culprit, over = exit_story.last_words(report), exit_story.nobody_lives(report)
    found = decide.source_of(report)
    return {
        "r": report,
        "site": ReportSite(),
        "style": Markup(style),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "policy": policy(style, script),
        "sentence": _sentence(wording.sentence(report.diagnosis), report.diagnosis.culprits),
        "long": len(report.diagnosis.summary) > LONG_SENTENCE,
        "legend": legend,
        "tints": {(kind.role, kind.name): kind.css for kind in legend},
        "described": rank_map.describe(legend),
        "drawings": rank_map.drawings(report.ranks, legend) if large else [],
        "cells": [] if large else rank_map.cells(report.ranks, legend),
        "cards": _cards(report)[:MAX_GROUPS],
        "branches": stack_tree.branches(report.tree, culprits, len(report.ranks)),
        "left_out": stack_tree.left_out(report.tree),
        "rows": _rows(report.ranks, large),
        "bare": _bare_columns(report.ranks, over and len(legend) == 1),
        "detailed": [
            one
            for one in report.ranks
            if one.threads or one.trace or (one.log and one is not culprit)
        ],
        "ended": exit_story.is_end(report),
        "over": over,
        "failed_rank": culprit,
        "strip": course.strip(report),
        "decisions": decide.decisions(report),
        "steps_to_type": decide.to_look_closer(report),
        "not_blamed": decide.not_blamed(report),
        "source": tuple(decide.numbered(found[1])) if found else (),
        "source_path": found[1].path if found else "",
        "failed_title": exit_story.words_title(culprit) if culprit else "",
        "story": exit_story.story(report) if exit_story.is_end(report) else None,
        "mapped": not over or len(legend) > 1 or len({one.node for one in report.ranks}) > 1,
        "groups_title": "How the ranks ended" if over else "Who stands where",
        "steps_of_job": hook_lines.job_words(report.job),
        "steps": hook_lines.step_lines(report.ranks),
        "traced": hook_lines.trace_lines(report.ranks),
        "moved": changes.change_lines(report.comparison) if report.comparison else (),
        "moved_title": changes.later_words(report.comparison) if report.comparison else "",
        "gpus": hardware.gpu_lines(report.gpus),
        "goodput": view_lines(report.goodput),
        "gaps": _gap_rows(report.gaps),
        "nodes": report.nodes[:TABLE_ROWS],
        "data": embed(rank_columns(report.ranks, legend)),
    }


def _sentence(summary: str, culprits: tuple[Culprit, ...]) -> tuple[str, str, str]:
    """Split the sentence around the words that name the culprit, which are shown in its colour."""
    ranks = [one.rank for one in culprits if one.rank is not None]
    if not ranks:
        return summary, "", ""
    name = f"ranks? {re.escape(fold_ranks(ranks))}(?![-,]?\\d)"
    found = re.search(name, summary, re.IGNORECASE)
    if found is None:
        return summary, "", ""
    return summary[: found.start()], found[0], summary[found.end() :]


def _cards(report: Report) -> list[GroupCard]:
    """Groups with a culprit first, else in the report's own order."""
    blamed = {one.group for one in report.ranks if one.culprit}
    found = [
        GroupCard(
            index=index,
            group=group,
            look=wording.ROLES[group.role],
            ranks=shorten_ranks(group.ranks, 160),
            culprit=index in blamed,
        )
        for index, group in enumerate(report.groups)
    ]
    return sorted(found, key=lambda card: not card.culprit)


def _bare_columns(ranks: tuple[RankView, ...], alike: bool) -> str:
    """CSS classes that hide the columns in which no rank has anything, or all that are over the same."""
    empty = {
        "no-state": not any(one.state for one in ranks),
        "no-cpu": all(one.cpu_ratio is None for one in ranks),
        "no-step": not any(hook_lines.step_words(one) for one in ranks),
        "no-collective": not any(one.last_collective for one in ranks),
        "no-kind": alike,
        "no-node": not any(one.node for one in ranks),
    }
    return " ".join(name for name, hidden in empty.items() if hidden)


def _rows(ranks: tuple[RankView, ...], large: bool) -> list[RankView]:
    """Culprits, suspects, then the others; of a large job only those to look at."""
    order = list(wording.ROLES)
    ordered = sorted(ranks, key=lambda one: (not one.culprit, order.index(one.role), one.rank))
    if large:
        alike = {"waiting"} if any(one.role != "exited" for one in ranks) else {"exited"}
        apart = [one for one in ordered if one.culprit or one.role not in alike]
        ordered = apart if len(apart) >= FEW_ROWS else ordered[:FEW_ROWS]
    return ordered[:TABLE_ROWS]


def _gap_rows(gaps: tuple[GapView, ...]) -> list[GapRow]:
    same: dict[tuple[str, str, str], list[GapView]] = {}
    for gap in gaps:
        same.setdefault((gap.what, gap.reason, gap.way_out), []).append(gap)
    return [GapRow(mine[0], _where(mine)) for mine in same.values()][:MAX_GAPS]


def _where(gaps: list[GapView]) -> str:
    ranks = {gap.rank for gap in gaps if gap.rank is not None}
    if ranks:
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {shorten_ranks(fold_ranks(ranks), 60)}"
    return f"pid {gaps[0].pid}" if gaps[0].pid is not None else ""


def rank_columns(ranks: Sequence[RankView], legend: Sequence[MapLegendEntry]) -> dict[str, Any]:
    """The rank table for the page's JavaScript: one list per column.

    Each text is stored once in `words`. Columns with few different values are run-length coded as
    `[index, times, index, times, …]`. `rank` is None for 0, 1, 2, …; `cpu` is percent, -1 where not
    known.
    """
    words: dict[str, int] = {}
    return {
        "pitch": PITCH,
        "gap": NODE_GAP,
        "kinds": [[kind.name, kind.role, kind.letter, kind.css] for kind in legend],
        "rank": _or_range([one.rank for one in ranks]),
        "count": len(ranks),
        "pid": [one.pid or 0 for one in ranks],
        "cpu": [-1 if one.cpu_ratio is None else round(one.cpu_ratio * 100) for one in ranks],
        "kind": _runs(kind_indices(ranks, legend)),
        "group": _runs(-1 if one.group is None else one.group for one in ranks),
        "culprits": [index for index, one in enumerate(ranks) if one.culprit],
        "node": _words((one.node for one in ranks), words),
        "state": _words((one.state for one in ranks), words),
        "step": _words((step_words(one) for one in ranks), words),
        "collective": _words((one.last_collective for one in ranks), words),
        "doing": _words((one.doing for one in ranks), words),
        "words": list(words),
    }


def _or_range(numbers: list[int]) -> list[int] | None:
    """None stands for 0, 1, 2 …"""
    return None if numbers == list(range(len(numbers))) else numbers


def _words(column: Iterable[str], words: dict[str, int]) -> list[int]:
    return _runs(words.setdefault(text, len(words)) for text in column)


def _runs(column: Iterable[int]) -> list[int]:
    return [number for value, run in groupby(column) for number in (value, sum(1 for _ in run))]
