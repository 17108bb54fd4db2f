"""A step that is told long after it was made, as a bar does that its monitor thread draws once more: progress is dated by who has slept since."""

import pytest

from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.log_progress import LogProgress
from mldebug.stall.signals import Progress, ProgressKind
from shared.stall.traces import LOOPS, SLEEPS, SPINS, TRAINS, WAITS, WORKS, Does, Run, watch

TIMEOUT = 15.0
STRUCK = 90.0


def redraw(run: Run) -> None:
    """A bar tells now what was done long ago."""
    old = run.signals[ProgressKind.RECORD]
    run.signals[ProgressKind.RECORD] = Progress(kind=old.kind, value=old.value + 1, at=run.at + 0.5, redrawn=True)  # fmt: skip


def hung(delay: float, others: Does) -> list[float]:
    """When incidents open, in seconds after the strike: quick steps, then a hang, and `told` seconds later a step that was not told yet."""
    run = Run().train(STRUCK, every=0.5)
    run.play(delay - 1, {1: SLEEPS}, others=others)
    redraw(run)
    run.play(60, {1: SLEEPS}, others=others)
    return [at - STRUCK for at in watch(run.looks, timeout=TIMEOUT).opened]


@pytest.mark.parametrize("delay", [2.0, 5.0, 10.0, 10.5, 13.0])
@pytest.mark.parametrize("others", [WAITS, SPINS])
def test_a_bar_that_is_drawn_once_more_keeps_no_hang_alive(delay: float, others: Does) -> None:
    (opened,) = hung(delay, others)
    assert TIMEOUT - 1 <= opened <= TIMEOUT + 3


@pytest.mark.parametrize("does", [WORKS, TRAINS, LOOPS._replace(switches=11.0)])
def test_a_step_counts_from_when_it_is_told_where_every_rank_has_run_since(does: Does) -> None:
    run = Run().train(STRUCK, every=0.5)
    run.play(9, does)
    redraw(run)
    run.play(1, does).play(60, {1: SLEEPS})
    (opened,) = watch(run.looks, timeout=TIMEOUT).opened
    assert opened - STRUCK - 10 >= TIMEOUT - 1


def test_a_rank_that_sleeps_all_the_time_dates_nothing_back() -> None:
    run = Run()
    for _ in range(12):
        run.play(10, {0: SLEEPS}, others=TRAINS)
        run.train(2, every=0.5, does={0: SLEEPS, 1: TRAINS, 2: TRAINS, 3: TRAINS})
        redraw(run)
    assert watch(run.looks, timeout=TIMEOUT).opened == []


def test_a_rank_that_sleeps_for_a_while_in_each_slow_step_is_no_hang() -> None:
    run = Run().train(60, every=0.5)
    for _ in range(12):
        run.play(9, {1: SLEEPS}, others=TRAINS)
        redraw(run)
        run.play(1, TRAINS)
    assert watch(run.looks, timeout=12.0).opened == []


@pytest.mark.parametrize(
    ("silent", "steps", "pace", "redrawn"),
    [
        (10.3, 148, 0.0022, True),  # as tqdm's monitor draws what it had left out
        (10.3, 1, 0.5, True),
        (0.4, 148, 0.0022, False),  # it draws as usual
        (10.3, 1, 10.2, False),  # a slow loop
        (21.0, 2, 10.2, False),
        (300.0, 40, 7.0, False),  # told every 40 steps
        (10.3, 148, None, False),  # no pace is known
    ],
)
def test_a_record_is_a_late_redraw_by_the_pace_that_stands_in_it(silent: float, steps: int, pace: float | None, redrawn: bool) -> None:  # fmt: skip
    progress = LogProgress()
    for step, at in ((5990, 99.0), (6000, 100.0), (6000 + steps, 100.0 + silent)):
        record = LogRecord(step=step, total=120_000, step_seconds=pace, format="huggingface")
        progress.take((record,), 80, at)
    assert {signal.redrawn for signal in progress.signals() if signal.kind is not ProgressKind.LOG_GROWTH} == {redrawn}  # fmt: skip
