"""The report as plain text: the verdict first, then where the ranks are, then what to do next."""

from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from mldebug.core.model import Diagnosis, Group, Role
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import Report
from mldebug.core.text import plural
from mldebug.goodput.account.run_summary import view_lines
from mldebug.incidents.decide import decisions, not_blamed, numbered, source_of, to_look_closer
from mldebug.incidents.report.changes import change_lines, later_words
from mldebug.incidents.report.exit_story import (
    ExitEvent,
    ExitStory,
    groups_title,
    is_end,
    last_words,
    others,
    story,
    words_title,
)
from mldebug.incidents.report.hardware import gpu_lines
from mldebug.incidents.report.hook_lines import (
    job_words,
    step_lines,
    trace_lines,
    trace_title,
    traced_culprit,
)
from mldebug.incidents.report.sanitize import tidy
from mldebug.incidents.report.wording import (
    ROLES,
    culprit_name,
    culprit_place,
    end_words,
    headline,
    sentence,
)

MAX_CULPRITS = 8
MAX_GROUPS = 8
MAX_FRAMES = 5
MAX_COLLECTIVES = 3  # told of one group of ranks
MAX_LOG_LINES = 12
MIN_WIDTH = 40
MAX_LABEL = 120  # characters of a frame, a name
MAX_SENTENCE = 400
MAX_STEP = 1_500


class TextLine(NamedTuple):
    """One line of a text report, without its line end, and the style in which a terminal may show it."""

    text: str
    style: str = ""


def report_lines(report: Report, width: int = 80) -> Iterator[str]:
    """Yield the report's lines, without control characters.

    All but commands have at most `width` columns (40 at least).
    """
    for line in _lines(report, max(width, MIN_WIDTH)):
        yield line.text


def print_report(report: Report, console: Console) -> None:
    """Print the report, with colours where the console is a terminal.

    Text of jobs is never interpreted as markup.
    """
    for line in _lines(report, max(console.width, MIN_WIDTH)):
        style = line.style if console.is_terminal else ""
        console.print(Text(line.text, style=style), highlight=False, soft_wrap=True)


def _lines(report: Report, width: int) -> Iterator[TextLine]:
    yield from _verdict(report, width)
    yield from _culprits(report, width)
    yield from _last_words(report, width)
    yield from _last_calls(report, width)
    if is_end(report):
        yield from _story(story(report), width)
    yield from _groups(report, width)
    yield from _listed("Steps, as the ranks say", "- ", step_lines(report.ranks), width)
    yield from _listed(
        "Last calls, as the tracers saw them", "- ", trace_lines(report.ranks), width
    )
    yield from _listed("Evidence", "- ", report.diagnosis.evidence, width)
    yield from _listed(*_moved(report), width)
    yield from _listed("GPUs of the ranks", "- ", gpu_lines(report.gpus), width)
    yield from _listed("GPUs and kernel", "- ", report.hardware, width)
    if report.xid_catalogue:
        yield from _wrap(f"What the Xids mean: catalogue {report.xid_catalogue}", width, "  ")
    yield from _listed("Where the GPU time went", "- ", view_lines(report.goodput), width)
    yield from _next(report, width)
    yield from _listed("Why not another rank?", "- ", _not_blamed_lines(report), width)
    yield from _listed("Odd", "- ", report.remarks, width)
    yield from _gaps(report, width)


def _verdict(report: Report, width: int) -> Iterator[TextLine]:
    diagnosis = report.diagnosis
    words = (headline(diagnosis), f"confidence {diagnosis.confidence}", end_words(report))
    line = " · ".join(word for word in words if word)
    yield from _wrap(line, width, "", "", _headline_style(diagnosis))
    yield from _wrap(sentence(diagnosis), width, style="bold")
    job = report.job
    where = plural(len(job.nodes), "node")
    yield from _wrap(
        f"{tidy(job.name, 40)} · {plural(job.world_size, 'rank')} on {where} · {report.id}",
        width,
        style="dim",
    )
    if missed := sum(node.state != "answered" for node in report.nodes):
        count = len(report.nodes)
        yield from _wrap(
            f"{count - missed} of {plural(count, 'node')} answered", width, style="bold yellow"
        )
    if progress := job_words(job):
        yield from _wrap(progress, width, style="dim")


def _headline_style(diagnosis: Diagnosis) -> str:
    return "bold red" if diagnosis.culprits else "bold green" if diagnosis.works else "bold yellow"


def _culprits(report: Report, width: int) -> Iterator[TextLine]:
    culprits = report.diagnosis.culprits
    heading = "First to fail" if is_end(report) else "Culprits" if len(culprits) > 1 else "Culprit"
    if report.diagnosis.works:
        return
    yield TextLine("")
    yield TextLine(heading, "underline")
    if not culprits:
        yield from _wrap("nobody is named: the evidence does not tell", width, "  ")
    for culprit in culprits[:MAX_CULPRITS]:
        about = (tidy(culprit_place(culprit), MAX_LABEL), tidy(culprit.reason, MAX_SENTENCE))
        text = " · ".join((culprit_name(culprit), *filter(None, about)))
        yield from _wrap(text, width, "> ", "  ", "bold red")
    if len(culprits) > MAX_CULPRITS:
        yield TextLine(f"  … and {len(culprits) - MAX_CULPRITS:,} more")
    yield from _source(report)


def _last_words(report: Report, width: int) -> Iterator[TextLine]:
    """Why the first rank failed, in its own words."""
    one = last_words(report)
    if one is None:
        return
    yield TextLine("")
    yield from _wrap(words_title(one), width, style="underline")
    if len(one.log) > MAX_LOG_LINES:
        yield TextLine(f"  … {plural(len(one.log) - MAX_LOG_LINES, 'line')} before", "dim")
    for line in one.log[-MAX_LOG_LINES:]:
        yield from _wrap(tidy(line, MAX_SENTENCE), width, "  | ")


def _last_calls(report: Report, width: int) -> Iterator[TextLine]:
    """What the tracer of the first culprit saw last."""
    one = traced_culprit(report)
    if one is None:
        return
    yield TextLine("")
    yield from _wrap(trace_title(one), width, style="underline")
    for line in one.trace[-MAX_LOG_LINES:]:
        yield from _wrap(tidy(line, MAX_SENTENCE), width, "  | ")


def _story(story: ExitStory, width: int) -> Iterator[TextLine]:
    if not story.first:
        return
    yield TextLine("")
    heading = f"In order ({story.day}, UTC; in brackets: who says so)"
    if not story.ordered:
        heading = "How the ranks ended, in no known order (in brackets: who says so)"
    yield from _wrap(heading, width, style="underline")
    for event in story.first:
        yield from _event(event, width)
    if story.middle:
        yield TextLine(f"  … {plural(len(story.middle), 'more event')} in the full report", "dim")
    for event in story.last:
        yield from _event(event, width)


def _event(event: ExitEvent, width: int) -> Iterator[TextLine]:
    source = f" [{event.source}]" if event.source else ""
    mark, style = ("> ", "bold red") if event.culprit else ("  ", "")
    text = tidy(f"{event.time}  {event.what}{source}".lstrip(), MAX_SENTENCE)
    yield from _wrap(text, width, mark, "    ", style)


def _groups(report: Report, width: int) -> Iterator[TextLine]:
    groups = others(report)
    blamed = {one.group for one in report.ranks if one.culprit}
    if groups:
        yield TextLine("")
        yield TextLine(groups_title(report), "underline")
    ordered = sorted(groups, key=lambda pair: pair[0] not in blamed)
    for index, group in ordered[:MAX_GROUPS]:
        yield from _group(group, index in blamed, width)
        for line in _last_collectives(report, index, group):
            yield from _wrap(line, width, "      ", "        ")
    if len(groups) > MAX_GROUPS:
        yield TextLine(f"  … and {plural(len(groups) - MAX_GROUPS, 'more group')}")


def _group(group: Group, blamed: bool, width: int) -> Iterator[TextLine]:
    look = ROLES[group.role]
    mark, style = ("> ", "bold red") if blamed else ("  ", look.style)
    ranks = f"{'rank' if group.count == 1 else 'ranks'} {shorten_ranks(group.ranks, 30)}"
    count = "" if group.count == 1 else f" ({group.count:,})"
    doing = tidy(group.doing, MAX_LABEL)
    head = f"{look.letter} {ranks}{count}: {doing} [{group.role}]"
    yield from _wrap(head, width, mark, "    ", style)
    for label in group.frames[:MAX_FRAMES]:
        yield from _wrap(tidy(label, MAX_LABEL), width, "      ", "        ")
    if len(group.frames) > MAX_FRAMES:
        yield TextLine(f"      … {plural(len(group.frames) - MAX_FRAMES, 'more frame')}", "dim")


def _last_collectives(report: Report, index: int, group: Group) -> Iterator[str]:
    """`last collective of ranks 0-1,3: all_reduce 21 of group dp`, where more is known than the group's own words say."""
    by_words: dict[str, list[int]] = {}
    for one in report.ranks:
        if one.group == index and one.last_collective and one.last_collective not in group.doing:
            by_words.setdefault(one.last_collective, []).append(one.rank)
    for words, ranks in list(by_words.items())[:MAX_COLLECTIVES]:
        folded = shorten_ranks(fold_ranks(ranks), 30)
        who = f"{'rank' if len(ranks) == 1 else 'ranks'} {folded}"
        yield f"last collective of {who}: {tidy(words, MAX_LABEL)}"


def _next(report: Report, width: int) -> Iterator[TextLine]:
    """What to do, and what to type to look closer: commands are whole lines, or they could not be copied.

    A message to be sent would only repeat the sentence above: the page has it.
    """
    todo = [one for one in decisions(report) if not one.message]
    steps = to_look_closer(report)
    if todo or steps:
        yield TextLine("")
        yield TextLine("Next", "underline")
    for one in todo:
        yield from _wrap(f"{one.title}: {one.words}", width, "  - ", "    ")
        if one.command:
            yield TextLine(f"  {tidy(one.command, MAX_STEP)}", "cyan")
    for step in steps:
        yield TextLine(f"  {tidy(step, MAX_STEP)}", "cyan")


def _source(report: Report) -> Iterator[TextLine]:
    """The lines at which the first culprit stands, where they are known."""
    found = source_of(report)
    if found is None:
        return
    yield TextLine(f"    {tidy(found[1].path, MAX_LABEL)}", "dim")
    for number, text, here in numbered(found[1]):
        yield TextLine(
            f"    {number} {'>' if here else ' '} {tidy(text, MAX_LABEL)}",
            "bold" if here else "dim",
        )


def _not_blamed_lines(report: Report) -> tuple[str, ...]:
    """A line for each reason why ranks are not named; none where all others are victims, or have ended: the lines above show it."""
    if is_end(report) or all(one.culprit or one.role is Role.WAITING for one in report.ranks):
        return ()
    return tuple(f"{'rank' if one.size == 1 else 'ranks'} {one.ranks}: {one.why}" for one in not_blamed(report))  # fmt: skip


def _listed(heading: str, bullet: str, items: tuple[str, ...], width: int) -> Iterator[TextLine]:
    if not items:
        return
    yield TextLine("")
    yield TextLine(heading, "underline")
    for item in items:
        yield from _wrap(tidy(item, MAX_SENTENCE), width, f"  {bullet}", "    ")


def _moved(report: Report) -> tuple[str, str, tuple[str, ...]]:
    """Heading, bullet and lines of what the second capture says."""
    comparison = report.comparison
    if comparison is None:
        return "", "- ", ()
    return f"What moved, {later_words(comparison)}", "- ", change_lines(comparison)


def _gaps(report: Report, width: int) -> Iterator[TextLine]:
    if report.gaps:
        first = report.gaps[0]
        yield TextLine("")
        count = plural(len(report.gaps), "piece")
        yield from _wrap(
            f"Gaps: {count} of evidence could not be had, or only in a poorer way.", width
        )
        yield from _wrap(tidy(f"{first.what}: {first.reason}", MAX_SENTENCE), width, "  ", "    ")
        if first.way_out:
            yield from _wrap(tidy(f"way out: {first.way_out}", MAX_SENTENCE), width, "  ", "    ")


def _wrap(
    text: str, width: int, first: str = "", later: str | None = None, style: str = ""
) -> Iterator[TextLine]:
    """Break tidied text at spaces into lines of at most `width` columns (wide characters take two)."""
    line = first
    empty = True
    for word in _pieces(tidy(text, 1_000), width - max(len(first), len(later or first))):
        joined = line + word if empty else f"{line} {word}"
        if not empty and cell_len(joined) > width:
            yield TextLine(line, style)
            joined = (first if later is None else later) + word
        line, empty = joined, False
    yield TextLine(line, style)


def _pieces(text: str, width: int) -> Iterator[str]:
    for word in text.split(" "):
        yield from chop_cells(word, width) if cell_len(word) > width else (word,)
