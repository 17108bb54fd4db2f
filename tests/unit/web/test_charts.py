"""The history of a run as charts of the server: what they draw, and that nothing of a job can break them."""

import math

from msgspec.structs import replace

from mldebug.goodput.scalars.history import HistoryTable
from mldebug.web import frame
from mldebug.web.charts import HEIGHT, WIDTH, charts, event_lines, sparklines
from mldebug.web.page import PageRequest
from shared.goodput.histories import history, made
from shared.web.snapshots import moving, snapshot


def page(name: str, id: str = "") -> str:
    shown = replace(snapshot(moving()), histories=(history(),))
    html = frame.render(name, PageRequest(snapshot=shown, id=id))
    assert html is not None
    return html


def test_each_figure_has_a_chart_inside_its_drawing() -> None:
    found = charts(history())
    assert [one.label for one in found] == ["loss", "gradient norm", "learning rate", "seconds per step", "tokens/s", "MFU"]  # fmt: skip
    for one in found:
        for line in one.lines:
            points = [tuple(map(float, point.split(","))) for point in line.split()]
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
            assert len(points) <= 240


def test_a_loss_that_is_no_number_is_a_gap_and_its_event_a_mark() -> None:
    loss = charts(history())[0]
    assert loss.last == "not a number"
    assert len(loss.marks) == 2
    assert max(float(point.split(",")[0]) for line in loss.lines for point in line.split()) < 110


def test_a_gap_in_the_middle_parts_the_line() -> None:
    table = HistoryTable()
    for n in range(30):
        table.add(100.0 * n, n, {"loss": math.inf if 10 <= n < 20 else 2.0 + n})
    loss, _ = charts(made("r", table))
    assert len(loss.lines) == 2


def test_a_run_that_tells_no_step_time_has_a_chart_of_how_fast_its_steps_came() -> None:
    """A line each second and a step in each; after 300 s a step needs 4 s, and at 600 s it begins anew at step 100."""
    table = HistoryTable()
    for second in range(900):
        step = second if second < 300 else 300 + (second - 300) // 4 if second < 600 else 100 + (second - 600) // 4  # fmt: skip
        table.add(1e9 + second, step, {"loss": 2.0})
    found = made("r", table)
    paces = [(at - 1e9, value) for at, value in found.series("step_seconds")]
    assert {value for at, value in paces if at < 300} == {1.0}
    assert all(value and 3 <= value <= 5.1 for at, value in paces if 310 < at < 590)
    assert [at for at, value in paces if value is None] == [600]
    assert all(value and 3 <= value <= 5.1 for at, value in paces if at > 620)
    chart = next(one for one in charts(found) if one.label == "seconds per step")
    assert len(chart.lines) == 2
    assert [one.label for one in sparklines(found)] == ["loss", "seconds per step"]


def test_a_step_time_that_the_run_tells_is_shown_as_it_tells_it() -> None:
    table = HistoryTable()
    for n in range(50):
        table.add(1e9 + 20 * n, n, {"step_seconds": 0.5})
    assert {value for _, value in made("r", table).series("step_seconds")} == {0.5}


def test_a_spike_does_not_flatten_the_rest() -> None:
    table = HistoryTable()
    for n in range(200):
        table.add(100.0 * n, n, {"loss": 1e300 if n == 100 else 2.0 + n % 2})
    loss = charts(made("r", table))[0]
    heights = [float(point.split(",")[1]) for point in loss.lines[0].split()]
    assert max(heights) - min(heights) > HEIGHT / 2
    assert loss.high == "1e+300"


def test_one_value_is_no_chart() -> None:
    table = HistoryTable()
    table.add(1.0, 1, {"loss": 2.0})
    assert charts(made("r", table)) == sparklines(made("r", table)) == ()


def test_the_newest_event_stands_first() -> None:
    assert [one.bad for one in event_lines(history())] == [True, False]


def test_pages_show_them() -> None:
    assert page("run", "5c01").count('class="trend tall"') == 6
    assert "the loss became NaN at step 801" in page("run", "5c01")
    assert page("runs").count('class="trend "') == 2
    assert "style=" not in page("run", "5c01")
