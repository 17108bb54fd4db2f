"""With the default settings: a run of short steps is known after half a minute, and its inert culprit is named within a minute."""

from collections.abc import Callable

import pytest

from mldebug.stall.signals import Progress, ProgressKind
from shared.stall.traces import (
    COMPILES,
    EVALUATES,
    LOADS,
    LOOPS,
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


LATE: dict[str, list[tuple[float, int]]] = {
    "as a bar's monitor draws it": [(10.0, 250), (5.0, 125), (5.0, 125), (5.0, 125)],
    "late at the end": [(5.0, 125), (5.0, 125), (5.0, 125), (15.0, 375)],
    "every look brings a few lines": [(5.0, 3), (5.0, 2), (5.0, 3), (10.0, 5)],
}


@pytest.mark.parametrize("redraws", LATE)
def test_one_late_redraw_among_few_is_no_rhythm(redraws: str) -> None:
    """Measured of an HF Trainer: its one late redraw made 50 s out of 30 s, or 240 s out of them where it came later still."""
    run = young(compiles=10.0, steady=5)
    for pause, steps in LATE[redraws]:
        run.play(pause - LOOKS, TRAINS)
        stepping(run, LOOKS, steps / LOOKS)
    hung = begun(run)
    opened = watch(run.play(120, {2: SLEEPS}, others=SPINS).looks, interval=LOOKS).opened
    assert opened
    assert opened[0] - hung <= 60.0


@pytest.mark.parametrize("steady", [5.0, 10.0, 15.0])
@pytest.mark.parametrize("compiles", [10.0, 200.0])
def test_a_run_that_hangs_before_its_rhythm_is_known_is_named_within_a_minute_of_a_short_start(
    steady: float, compiles: float
) -> None:
    run = young(compiles, steady=steady)
    hung = begun(run)
    opened = watch(run.play(320, {2: SLEEPS}, others=SPINS).looks, interval=LOOKS).opened
    assert opened
    assert opened[0] - hung <= 60.0


def test_a_file_that_grows_in_bursts_names_on_time() -> None:
    """wandb's offline file: a burst of steps at the start, then seldom one."""
    run = Run(interval=LOOKS)
    run.started = True
    run.play(10, TRAINS)
    for steps in (60, 400):
        run.signals[ProgressKind.RECORD] = Progress(
            kind=ProgressKind.RECORD, value=steps, at=run.at, events=steps
        )
        run.play(30, TRAINS)
    hung = begun(run)
    opened = watch(run.play(200, {2: SLEEPS}, others=SPINS).looks, interval=LOOKS).opened
    assert opened
    assert opened[0] - hung <= 60.0


YOUNG_PAUSES: dict[str, Callable[[Run], Run]] = {
    "rank 0 prepares": lambda run: run.play(280, {0: WORKS}, others=SPINS),
    "rank 0 prepares on its own for long": lambda run: run.play(380, {0: WORKS}, others=SPINS),
    "all compile": lambda run: run.play(280, COMPILES),
    "one compiles": lambda run: run.play(280, {0: COMPILES}, others=SPINS),
    "short": lambda run: run.play(40, SLEEPS),
}


@pytest.mark.parametrize("pause", YOUNG_PAUSES)
def test_a_pause_right_after_the_first_step_raises_nothing(pause: str) -> None:
    run = YOUNG_PAUSES[pause](young(steady=0))
    assert watch(stepping(run, 60).looks, interval=LOOKS).opened == []


FIRST: dict[str, Callable[[Run], Run]] = {
    "all connect, each in a wait": lambda run: run.play(100, SPINS),
    "one loads its first batch, slowly": lambda run: run.play(100, {1: LOADS}, others=SPINS),
    "all compile": lambda run: run.play(280, COMPILES),
}


def drawn_at_0() -> Run:
    """A run that has loaded for 20 s, and then drawn its bar."""
    run = Run(interval=LOOKS).play(20, WORKS)
    run.at += LOOKS
    run.signal(ProgressKind.RECORD, 1)
    run.signal(ProgressKind.STEP, 0)
    run.look(WORKS)
    return run


@pytest.mark.parametrize("settings", [{}, {"timeout": 15.0}], ids=("default", "15 s"))
@pytest.mark.parametrize("first", FIRST)
def test_a_bar_that_stands_at_0_is_no_first_step(first: str, settings: dict[str, float]) -> None:
    """An HF Trainer draws it before its first step, which connects and compiles: with a timeout of 15 s that was an early alarm."""
    run = stepping(FIRST[first](drawn_at_0()), 60)
    assert watch(run.looks, interval=LOOKS, **settings).opened == []


@pytest.mark.parametrize(
    ("settings", "within"), [({}, 60.0), ({"timeout": 15.0}, 35.0)]
)  # by looks 5 s apart
def test_what_hangs_after_such_a_bar_is_named_as_in_any_other_run(
    settings: dict[str, float], within: float
) -> None:
    run = stepping(drawn_at_0().play(60, SPINS), 30)
    hung = begun(run)
    opened = watch(run.play(120, {2: SLEEPS}, others=SPINS).looks, interval=LOOKS, **settings).opened  # fmt: skip
    assert opened
    assert opened[0] - hung <= within


def test_a_bar_that_never_leaves_0_is_a_run_that_never_made_its_first_step() -> None:
    run = drawn_at_0().play(400, {2: SLEEPS}, others=SPINS)
    story = watch(run.looks, interval=LOOKS, timeout=15.0)
    assert len(story.opened) == 1
    assert 310 <= story.opened[0] <= 350
    assert "before the first step" in story.decisions[-1][1].why_timeout


def test_a_bar_at_0_of_a_later_epoch_ends_a_pause_that_the_run_is_used_to() -> None:
    """A bar without a loss is drawn anew after each evaluation: no pause was learned, and each one captured."""
    on_gpu = TRAINS._replace(device=True)
    run = Run(interval=LOOKS)
    run.started = True
    for _ in range(6):
        run.at += LOOKS
        run.signal(ProgressKind.STEP, 0)
        run.look(on_gpu)
        stepping(run, 120, 0.2, on_gpu)
        run.play(100, on_gpu)
    story = watch(run.looks, interval=LOOKS)
    assert story.opened == []
    assert len(story.captured) <= 1


def epochs_alone(does: dict[int, Does]) -> Run:
    """A run that draws a bar of its epochs and tells nothing within one; after five minutes of training `does` begins."""
    trained = drawn_at_0().play(300, TRAINS._replace(device=True))
    return trained.play(500, does, others=SPINS)


def test_a_rank_that_never_comes_is_noticed_in_the_first_epoch_of_a_bar_of_epochs() -> None:
    """The bar stood at 0 all that time, as before a first step, in which nobody is blamed for being busy."""
    run = epochs_alone({2: LOOPS})
    opened = watch(run.looks, interval=LOOKS).opened
    assert len(opened) == 1
    assert 300 < opened[0] - 325 <= 470


def test_who_waits_for_a_while_in_the_first_epoch_of_a_bar_of_epochs_raises_nothing() -> None:
    run = epochs_alone({2: TRAINS._replace(device=True)})
    run.looks = run.looks[: int((325 + 350) / LOOKS)]
    assert watch(run.play(300, TRAINS._replace(device=True)).looks, interval=LOOKS).opened == []
