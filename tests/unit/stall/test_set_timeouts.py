"""A timeout that a person has set is not shorter than what the run's own signs of progress leave between them."""

from itertools import cycle, islice

import pytest

from mldebug.stall.signals import Stage
from shared.stall.traces import SLEEPS, WAITS, Run, Story, watch

# seconds between signs of progress of healthy trainings on a machine of two cores that many shared; each is written every 50 steps
RECORDED = {
    "lightning": (14.3, 15.7, 11.6, 9.6, 16.1, 13.2, 11.9, 13.8, 8.1, 16.7, 17.1, 9.7),
    "lightning, tqdm": (6.4, 5.3, 6.0, 16.9, 15.7, 7.4, 8.1, 5.9),
    "wandb offline": (14.4, 16.0, 14.3, 16.0, 16.7, 13.2, 16.4, 14.7),
    "wandb offline, more load": (10.7, 23.0, 11.3, 16.7, 10.4, 19.9, 11.5, 10.1),
}
LEARNS = 8  # signs of progress until the watch knows them


def training(gaps: tuple[float, ...], *, again: int = 6) -> Run:
    """Ranks that no processor is free for stand wherever they are: all samples show each of them in its collective."""
    run = Run(ranks=2)
    for gap in gaps[:LEARNS]:
        run.play(gap, {}, every=lambda _, gap=gap: gap, others=WAITS._replace(stands=False))  # type: ignore[misc]
    for gap in islice(cycle(gaps), again * len(gaps)):
        run.play(gap, WAITS, every=lambda _, gap=gap: gap)  # type: ignore[misc]
    return run


def story_of(run: Run, timeout: float | str) -> Story:
    return watch(run.looks, timeout=timeout)


@pytest.mark.parametrize("timeout", [5.0, 15.0])
@pytest.mark.parametrize("name", RECORDED)
def test_a_timeout_below_the_gaps_of_a_healthy_run_raises_nothing(name: str, timeout: float) -> None:  # fmt: skip
    story = story_of(training(RECORDED[name]), timeout)
    assert story.opened == []
    assert "more than stall.timeout (" in story.decisions[-1][1].why_timeout


@pytest.mark.parametrize("name", RECORDED)
def test_what_hangs_there_is_noticed_at_one_and_a_half_such_gaps(name: str) -> None:
    run = training(RECORDED[name])
    hung = run.at - run.looks[0].at
    opened = story_of(run.play(90, {1: SLEEPS}), 15.0).opened
    assert len(opened) == 1
    assert opened[0] - hung <= 1.5 * sorted(RECORDED[name])[-2] + 5


@pytest.mark.parametrize("every", [0.05, 1.0, 4.0])
def test_a_run_of_quick_steps_keeps_the_timeout_that_was_set(every: float) -> None:
    run = Run().train(200, every)
    hung = run.signals.popitem()[1].at - run.looks[0].at
    run = Run().train(200, every).play(60, {2: SLEEPS})
    story = story_of(run, 15.0)
    assert len(story.opened) == 1
    assert 14 <= story.opened[0] - hung <= 17
    assert story.first(Stage.BLAMED).why_timeout == "stall.timeout in the config"


def test_one_long_pause_among_quick_steps_is_no_gap() -> None:
    run = Run().train(100).play(14, WAITS).train(4)
    hung = run.at - run.looks[0].at
    opened = story_of(run.play(60, {2: SLEEPS}), 15.0).opened
    assert len(opened) == 1
    assert opened[0] - hung <= 17


def test_a_long_timeout_stays_as_it_is() -> None:
    story = story_of(training(RECORDED["lightning"]), 100.0)
    assert story.decisions[-1][1].timeout == 100.0
    assert story.decisions[-1][1].why_timeout == "stall.timeout in the config"


@pytest.mark.parametrize(("timeout", "pace"), [(15.0, 1.5), (60.0, 5.0), ("auto", 5.0)])
def test_a_short_timeout_is_counted_from_looks_as_close(timeout: float | str, pace: float) -> None:
    """When a rank stood still first is known no more closely than two looks are apart."""
    run = Run(ranks=2, interval=5.0).train(60)
    story = watch(run.looks, timeout=timeout, interval=5.0)
    assert story.decisions[-1][1].next_look == pytest.approx(pace)
