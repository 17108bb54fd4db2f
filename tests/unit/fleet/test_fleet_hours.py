"""GPU hours by user or job and week, and the list of all nodes."""

from typing import Any

import pytest

from mldebug.fleet.answers.hours import hours, hours_lines
from mldebug.fleet.answers.lemons import lemons
from mldebug.fleet.answers.node_list import node_lines, node_list
from mldebug.fleet.events import AnyEvent
from shared.fleet.fleet_events import DAY, HOUR, NOW, attempt, fault, gpu, health

MONDAY = 1_795_392_000.0  # 2026-11-23T00:00:00Z, when week 48 begins


def ran(began: float, ended: float | None, node: str = "n1", **more: Any) -> AnyEvent:
    seconds = {"productive": 3 * HOUR, "stalled": HOUR}
    at = ended if ended is not None else began + HOUR
    return attempt(node, began=began, at=at, ended=ended, **({"gpu_seconds": seconds} | more))


def rows(events: list[AnyEvent], by: str = "user", since: float = 0.0) -> list[tuple[Any, ...]]:
    return [(one.week, one.group, one.gpu_hours, one.productive_ratio) for one in hours(events, by, since).hours]  # fmt: skip


def test_hours_of_all_nodes_are_summed_by_user_and_week() -> None:
    events = [
        ran(MONDAY, MONDAY + DAY),
        ran(MONDAY, MONDAY + DAY, "n2"),
        ran(MONDAY - 2 * DAY, MONDAY - DAY),
        ran(MONDAY, MONDAY + DAY, user="bob", uid=7, job="eval.py", gpu_seconds={"stalled": HOUR}),
        ran(MONDAY, MONDAY + DAY, user="", uid=9),
    ]
    assert rows(events) == [("2026-W48", "ada", 8, 0.75), ("2026-W48", "9", 4, 0.75), ("2026-W48", "bob", 1, 0), ("2026-W47", "ada", 4, 0.75)]  # fmt: skip
    assert [one[:3] for one in rows(events, "job")][:2] == [("2026-W48", "train.py", 12), ("2026-W48", "eval.py", 1)]  # fmt: skip
    assert rows(events, "all")[0][:3] == ("2026-W48", "", 13)


def test_an_attempt_over_several_weeks_is_spread_by_time() -> None:
    found = rows([ran(MONDAY - 6 * DAY, MONDAY + 2 * DAY, gpu_seconds={"productive": 800 * HOUR})])
    assert [(one[0], one[2]) for one in found] == [("2026-W48", 200), ("2026-W47", 600)]


def test_the_weeks_before_are_left_out() -> None:
    events = [ran(MONDAY - 3 * DAY, MONDAY - 2 * DAY), ran(MONDAY + 1, MONDAY + 2)]
    assert [one[0] for one in rows(events, since=MONDAY + 3 * DAY)] == ["2026-W48"]


@pytest.mark.parametrize("ended", [None, MONDAY, MONDAY - DAY])
def test_an_attempt_without_a_length_counts_once(ended: float | None) -> None:
    """It has just begun, or a clock was set back."""
    found = hours([ran(MONDAY, ended)], "all", 0.0).hours
    assert sum(one.gpu_hours for one in found) == 4


def test_a_clock_that_was_never_set_makes_no_thousand_weeks() -> None:
    found = hours([ran(0.0, MONDAY)], "all", 0.0).hours
    assert len(found) <= 61
    assert sum(one.gpu_hours for one in found) == pytest.approx(4, rel=0.02)


def test_the_year_of_a_week_is_that_of_iso_8601() -> None:
    new_year = 1_798_761_600.0  # 2027-01-01, a Friday
    assert rows([ran(new_year, new_year + HOUR)])[0][0] == "2026-W53"


def test_lines_are_a_table() -> None:
    lines = list(hours_lines(hours([ran(MONDAY, MONDAY + DAY)], "user", 0.0)))
    assert lines[0].split()[:3] == ["week", "user", "GPU"]
    assert lines[1].split() == ["2026-W48", "ada", "4.0", "75", "%", "stalled", "1.0"]


# --- nodes -----------------------------------------------------------------------------------------


def test_all_nodes_the_worst_first() -> None:
    inventories = [health("n1", NOW, gpu(1), gpu(2)), health("n2", NOW - 9 * HOUR), health("n3", NOW), health("n4", NOW - 9 * HOUR)]  # fmt: skip
    evidence = [fault("n3"), fault("n4", NOW - HOUR)]
    found = node_list(inventories, lemons(evidence, NOW), NOW)
    assert [(one.node, one.standing, one.gpus) for one in found.nodes] == [("n3", "ill", 0), ("n4", "ill", 0), ("n2", "silent", 0), ("n1", "well", 2)]  # fmt: skip
    assert found.standings == {"lemon": 0, "ill": 2, "silent": 1, "watch": 0, "well": 1}
    assert next(node_lines(found)) == "2 ill, 1 silent, 1 well"


def test_a_node_that_never_sent_an_inventory_stands_in_the_list() -> None:
    (one,) = node_list([], lemons([fault("n9")], NOW), NOW).nodes
    assert (one.node, one.last_sent) == ("n9", "")


def test_ten_thousand_nodes_are_listed_in_time() -> None:
    inventories = [health(f"n{number}", NOW, gpu(number)) for number in range(10_000)]
    found = node_list(inventories, lemons(inventories, NOW), NOW)
    assert found.standings["well"] == len(found.nodes) == 10_000
