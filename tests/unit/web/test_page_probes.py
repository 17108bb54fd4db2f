"""The page about probes: the words of `probe history`, shifted ones first, drawings that tell the truth, damaged files."""

import math
import time

import pytest
from msgspec.structs import replace

from mldebug.probes.history import RECENT, figures, judge, judge_all
from mldebug.status.probe_lines import common, verdict
from mldebug.status.snapshot import Snapshot, SourceState
from mldebug.web import frame
from mldebug.web.page import PageRequest
from mldebug.web.pages.probes import (
    HEIGHT,
    NONE,
    NOT_YET,
    WIDTH,
    ProbesPage,
    ProbesPageData,
    Sparkline,
)
from shared.web.pagedata import SERIES, history, measured, probes, quiet
from shared.web.webtext import HOSTILE, text_of


def built(snapshot: Snapshot) -> ProbesPageData:
    return ProbesPage().build(PageRequest(snapshot=snapshot))


def page(snapshot: Snapshot) -> str:
    html = frame.render("probes", PageRequest(snapshot=snapshot))
    assert html is not None
    return html


def drawn(*speeds: float) -> Sparkline | None:
    state = quiet(probes=(judge(*measured(speeds)),))
    return built(state).headings[0].rows[0].spark


def heights(spark: Sparkline | None) -> list[float]:
    assert spark is not None
    return [float(point.partition(",")[2]) for point in spark.line.split()]


def test_every_word_of_the_terminal_stands_in_the_page() -> None:
    text = text_of(page(probes()))
    for one in history():
        for words in (common(one.series), verdict(one).replace("_", " "), figures(one), f"{one.runs} run"):  # fmt: skip
            assert words in text


def test_what_has_shifted_comes_first_with_its_verdict() -> None:
    shown = built(probes())
    assert (shown.lead, shown.bad) == ("1 of 8 series has shifted", True)
    first = shown.headings[0].rows[0]
    assert (first.op, first.size, first.css_class, first.verdict) == ("all_reduce", "1GiB", "bad", "shifted -14%")  # fmt: skip
    assert first.change == "14% slower than usual in each of the last 3 runs"
    others = [row for heading in shown.headings for row in heading.rows][1:]
    assert {row.css_class for row in others} == {"good", "quiet"}


def test_when_the_last_one_ran_and_what_to_type() -> None:
    shown = built(probes())
    assert shown.last == "the last probe ran 3 h ago (2026-11-21 02:46Z)"
    assert shown.commands[0] == "mldebug probe isolate"
    steady = built(quiet(probes=judge_all([measured([1.0] * 12)])))
    assert steady.commands[0] == "mldebug probe collectives"
    assert steady.lead == "1 series, none has shifted"


def test_old_runs_are_told_in_days() -> None:
    series, runs = measured([1.0, 1.0])
    old = judge(series, [replace(one, at=one.at - 5 * 86400) for one in runs])
    assert built(quiet(probes=(old,))).headings[0].rows[0].ago == "5 days ago"


# --- drawings ------------------------------------------------------------------------------------


def test_more_is_above_and_the_newest_is_on_the_right() -> None:
    spark = drawn(1.0, 2.0, 3.0)
    assert heights(spark) == sorted(heights(spark), reverse=True)
    assert spark is not None
    assert spark.last == (WIDTH - 2, 2.0)
    assert spark.band is None  # too few runs to say what is usual


def test_the_band_lies_around_the_usual_runs_and_a_shift_leaves_it() -> None:
    spark = drawn(*[100.0] * 20, 70.0, 70.0, 70.0)
    assert spark is not None
    assert spark.band is not None
    top, height = spark.band
    result = heights(spark)
    assert all(top < one < top + height for one in result[:20])
    assert all(one > top + height for one in result[20:])
    assert top >= 0
    assert max(result) <= HEIGHT


def test_noise_of_a_young_series_is_not_drawn_as_a_drama() -> None:
    result = heights(drawn(20.86, 20.93, 20.81))
    assert max(result) - min(result) < 0.1 * HEIGHT


def test_equal_runs_are_a_line_in_the_middle_and_one_run_is_none() -> None:
    assert set(heights(drawn(5.0, 5.0, 5.0))) == {HEIGHT / 2}
    assert drawn(5.0) is None
    assert len(heights(drawn(*[5.0] * 90))) == RECENT


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e308])
@pytest.mark.parametrize("at", [1e300, math.inf, -math.inf])
def test_what_a_damaged_file_tells_draws_nothing_wrong(odd: float, at: float) -> None:
    series, runs = measured([1.0] * 12)
    runs[-1] = replace(runs[-1], busbw=odd, at=at)
    state = quiet(probes=(judge(series, runs),))
    html = page(state)
    assert "nan" not in html.partition("<polyline")[2].partition(">")[0]
    assert "a moment that cannot be" in html


# --- nothing to show, bad input ------------------------------------------------------------------


def test_none_is_not_the_same_as_not_known() -> None:
    assert built(quiet(probes=())).nothing == NONE
    assert built(quiet()).nothing == NOT_YET
    failing = SourceState(name="probes", success=False, error="EvidenceError: probes.sqlite: permission denied")  # fmt: skip
    changed = replace(quiet(), sources=(failing,))
    assert "permission denied" in text_of(page(changed))
    assert "mldebug probe collectives" in page(quiet(probes=()))


def test_hostile_names_are_text() -> None:
    names = dict.fromkeys(("op", "device", "nodes", "torch", "nccl", "dtype", "variables"), HOSTILE)  # fmt: skip
    state = quiet(probes=(judge(replace(SERIES, **names), measured([1.0] * 12)[1]),))
    html = page(state)
    assert "<img" not in html
    assert "\u202e" not in html


def test_as_many_series_as_the_agent_shows_are_fast() -> None:
    many = tuple(judge(*measured([1.0 + one] * 40, bytes=one + 1)) for one in range(200))
    page(quiet(probes=many))
    began = time.process_time()
    assert page(quiet(probes=many)).count("<polyline") == 200
    assert time.process_time() - began < 1.0
