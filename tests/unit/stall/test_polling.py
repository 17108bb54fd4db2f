"""A rank that only wakes to look again stands as still as one that sleeps on; one that works, however slowly, does not."""

from typing import Any

import pytest

from mldebug.core.model import Role
from mldebug.stall.signals import Stage
from shared.stall.plots import trained
from shared.stall.traces import Does, watch

TIMEOUT, BUSY = 20.0, 60.0
BEGIN = 60.0  # seconds that `trained` steps before
POLLS = Does(Role.INERT, "polls in wait_for_file (train.py:7)", class_name="poll", cpu=0.02, switches=20.0)  # fmt: skip
POLLS_ON_CROWDED_NODE = POLLS._replace(class_name="sleep", cpu=0.003, switches=9.0, delay=0.176)
"""`urlopen` each 0.1 s at a load of 21 on 2 cores, as its counters were read; the next ones are of an evaluation and its child."""
EVALUATES_ON_CROWDED_NODE = POLLS._replace(
    class_name="sleep", cpu=0.026, switches=17.0, delay=0.521
)
ITS_CHILD = Does(Role.INERT, "waits for a child", class_name="child_wait", children_cpu=0.026, children_delay=0.521)  # fmt: skip
WAITS_FOR_GIL = POLLS._replace(doing="waits for the GIL in train (train.py:9)", class_name="gil", switches=200.0)  # fmt: skip


def blamed_after(does: Does) -> float:
    """Seconds of quiet at which the stall of rank 3 is blamed."""
    story = watch(trained().play(150, {3: does}).looks, timeout=TIMEOUT, busy_timeout=BUSY)
    return story.times(lambda decision: decision.stage is Stage.BLAMED)[0] - BEGIN


@pytest.mark.parametrize(
    "does",
    [
        POLLS,
        POLLS_ON_CROWDED_NODE,
        POLLS_ON_CROWDED_NODE._replace(switches=15.0, delay=0.6),  # twenty looks a second
        WAITS_FOR_GIL,
        POLLS._replace(class_name="file_lock", switches=2.0),
        POLLS._replace(class_name="lock", switches=100.0),  # queue.get(timeout=0.01)
        POLLS._replace(class_name="sleep", cpu=0.04, switches=50.0),
    ],
)
def test_who_only_looks_again_is_blamed_at_the_timeout(does: Does) -> None:
    assert blamed_after(does) <= TIMEOUT + 3


@pytest.mark.parametrize(
    "does",
    [
        POLLS._replace(cpu=0.1),  # it works slowly
        EVALUATES_ON_CROWDED_NODE,
        ITS_CHILD,
        POLLS._replace(stands=False),  # in another line each time
        POLLS._replace(process_cpu=0.9),  # a thread of it works
        POLLS._replace(children_cpu=0.3),  # a child of it works
        POLLS._replace(io=1e6),  # it reads
        POLLS._replace(compiling=True),
        POLLS._replace(role=Role.BUSY, class_name="busy"),
        POLLS._replace(class_name="storage", state="D"),  # pages of a file come in
    ],
)
def test_who_works_meanwhile_is_blamed_late_or_never(does: Does) -> None:
    story = watch(trained().play(150, {3: does}).looks, timeout=TIMEOUT, busy_timeout=BUSY)
    blamed = story.times(lambda decision: decision.stage is Stage.BLAMED)
    assert not blamed or blamed[0] - BEGIN >= BUSY - 1


IN_ITS_LOOK = POLLS_ON_CROWDED_NODE._replace(role=Role.BUSY, doing="runs create_connection", class_name="busy", stands=False)  # fmt: skip


def found(pattern: str, elsewhere: Does = IN_ITS_LOOK, rest: Does = POLLS_ON_CROWDED_NODE) -> float:
    """Seconds of quiet at which rank 3 is blamed, which each second is found at rest (`.`) or elsewhere (`x`), again and again."""
    run = trained()
    for second in range(150):
        run.play(1, {3: elsewhere if pattern[second % len(pattern)] == "x" else rest})
    story = watch(run.looks, timeout=TIMEOUT, busy_timeout=BUSY)
    return story.times(lambda decision: decision.stage is Stage.BLAMED)[0] - BEGIN


@pytest.mark.parametrize("pattern", ["......x", "...x", "..x", ".....xx"])
def test_who_is_found_in_the_midst_of_a_look_is_blamed_at_the_timeout(pattern: str) -> None:
    assert found(pattern) <= TIMEOUT + 4


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        ("...xxxx", {}),  # it was elsewhere for longer than a look
        ("...x", {"cpu": 0.3}),
        ("...x", {"device": True}),
        ("...x", {"compiling": True}),
        ("...x", {"io": 1e6}),
        ("...x", {"delay": 0.9, "cpu": 0.03}),
        ("...x", {"children_cpu": 0.5}),
    ],
)
def test_who_does_something_meanwhile_is_blamed_late(pattern: str, change: dict[str, Any]) -> None:
    assert found(pattern, IN_ITS_LOOK._replace(**change)) >= BUSY - 1


def test_who_goes_from_one_of_its_places_to_the_next_moves() -> None:
    other = POLLS_ON_CROWDED_NODE._replace(doing="polls in another (train.py:9)")
    assert found("....xxxx", other) >= BUSY - 1
