"""With the default settings: a run of short steps is known after half a minute, and its inert culprit is named within a minute."""

from collections.abc import Callable

import pytest

from mldebug.stall.signals import ProgressKind
from shared.stall.traces import (
    COMPILES,
    EVALUATES,
    LOADS,
    SAVES,
    SLEEPS,
    SPINS,
    TRAINS,
    WORKS,
    Does,
    Run,
    watch,
)

LOOKS = 5.0  # seconds between two looks by default


def young(compiles: float = 40.0, steady: float = 30.0, rate: float = 25.0) -> Run:
    """A job that compiles at its first step and then makes so many steps a second; looked at as by default."""
    run = Run(interval=LOOKS)
    run.signal(ProgressKind.STEP, 1)
    run.started = True
    run.play(compiles, COMPILES)
    return stepping(run, steady, rate)


def stepping(run: Run, seconds: float, rate: float = 25.0, does: Does = TRAINS) -> Run:
    for _ in range(int(seconds / LOOKS)):
        run.at += LOOKS
        last = run.signals[ProgressKind.STEP].value
        run.signal(ProgressKind.STEP, last + rate * LOOKS)
        run.look(does)
    return run


def begun(run: Run) -> float:
    return run.at - run.looks[0].at


@pytest.mark.parametrize("rate", [0.5, 2.0, 25.0])
@pytest.mark.parametrize("culprit", [SLEEPS, LOADS])
@pytest.mark.parametrize("compiles", [10.0, 60.0, 200.0])
def test_an_inert_culprit_is_named_within_a_minute(
    compiles: float, culprit: Does, rate: float
) -> None:
    run = young(compiles, rate=rate)
    hung = begun(run)
    opened = watch(run.play(120, {2: culprit}, others=SPINS).looks, interval=LOOKS).opened
    assert len(opened) == 1
    assert opened[0] - hung <= 60.0


def test_the_timeout_is_what_the_steps_say_after_half_a_minute() -> None:
    story = watch(young().looks, interval=LOOKS)
    assert story.decisions[-1][1].timeout == 30.0


def test_bars_that_are_drawn_late_are_no_slow_steps() -> None:
    """A bar of a quick loop that a monitor draws every 10 s: the number of its steps says how quick it is."""
    run = young(steady=0)
    for _ in range(4):
        run.play(LOOKS, TRAINS)
        stepping(run, LOOKS, 50.0)
    hung = begun(run)
    opened = watch(run.play(120, {2: SLEEPS}, others=SPINS).looks, interval=LOOKS).opened
    assert opened
    assert opened[0] - hung <= 75.0


PAUSES: dict[str, Callable[[Run], Run]] = {
    "rank 0 evaluates": lambda run: run.play(200, {0: WORKS}, others=SPINS),
    "all evaluate": lambda run: run.play(200, WORKS),
    "a child evaluates": lambda run: run.play(200, {0: EVALUATES}, others=SPINS),
    "compiles again": lambda run: run.play(200, COMPILES),
    "saves": lambda run: run.play(200, {0: SAVES}, others=SPINS),
    "short pause": lambda run: run.play(25, SLEEPS),
}


@pytest.mark.parametrize("pause", PAUSES)
def test_a_healthy_young_run_raises_nothing(pause: str) -> None:
    run = PAUSES[pause](young())
    assert watch(stepping(run, 60).looks, interval=LOOKS).opened == []


@pytest.mark.parametrize("every", [45.0, 100.0, 200.0])
def test_slow_steps_from_the_start_raise_nothing(every: float) -> None:
    """Each rank waits for the others for nearly all of a step, as on a busy pipeline."""
    run = Run(interval=LOOKS)
    run.started = True
    run.signal(ProgressKind.STEP, 1)
    run.play(20 * every, TRAINS, every=lambda _: every, kind=ProgressKind.STEP)
    assert watch(run.looks, interval=LOOKS).opened == []


def test_a_restart_begins_with_a_start_again() -> None:
    run = young()
    run.attempt += 1
    run.signals, run.started = {}, False
    run.play(20, COMPILES)
    run.signal(ProgressKind.STEP, 1)
    run.started = True
    stepping(run.play(100, COMPILES), 30)
    assert watch(run.looks, interval=LOOKS).decisions[-1][1].timeout == 30.0
