"""A run that is left out of looks, because its owner's jobs have taken too much time, is blamed nearly as early as any other."""

import pytest
from msgspec.structs import replace

from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import ProgressKind, RunLook
from shared.stall.traces import SLEEPS, SPINS, TRAINS, Run

LOOKS = 5.0
HUNG = 300.0


def opened(looks: list[RunLook], every: int) -> list[float]:
    """Seconds from the hang to each alarm, where only every so manieth look has time for this run."""
    watch, wanted = StallWatch(StallSettings(interval=LOOKS)), False
    found = []
    for number, look in enumerate(looks):
        if number % every:
            wanted = watch.pass_over(look.at) or wanted
            continue
        events = tuple(replace(signal, events=5 * every) for signal in look.progress)
        decision = watch.look(replace(look, progress=events))
        wanted = decision.sample
        found += [look.at - looks[0].at - HUNG] if decision.open else []
    return found


def stepping(seconds: float) -> Run:
    """A run of a step a second."""
    return going_on(Run(interval=LOOKS, start=1000.0), seconds)


def going_on(run: Run, seconds: float) -> Run:
    run.started = True
    for _ in range(int(seconds / LOOKS)):
        run.at += LOOKS
        run.signal(ProgressKind.STEP, run.at)
        run.look(TRAINS)
    return run


@pytest.mark.parametrize(("every", "within"), [(1, 35.0), (2, 40.0), (3, 60.0), (9, 135.0)])
def test_it_is_blamed_after_its_timeout_and_two_turns(every: int, within: float) -> None:
    run = stepping(HUNG + LOOKS).play(300, {2: SLEEPS}, others=SPINS)
    late = opened(run.looks, every)
    assert len(late) == 1
    assert late[0] <= within


@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_a_healthy_one_raises_nothing(every: int) -> None:
    run = going_on(stepping(HUNG).play(25, SLEEPS), 600)
    assert opened(run.looks, every) == []


def test_time_in_which_the_node_was_not_looked_at_is_nobody_s_quiet() -> None:
    """A machine that slept for an hour: control."""
    run = stepping(HUNG)
    run.at += 3600
    run.play(10, SLEEPS)
    going_on(run, 300)
    assert opened(run.looks, 1) == []


def test_the_clock_counts_no_time_twice() -> None:
    run = stepping(HUNG)
    one, other = (StallWatch(StallSettings(interval=LOOKS)) for _ in range(2))
    for look in run.looks:
        one.look(look)
    for number, look in enumerate(run.looks):
        other.pass_over(look.at)
        if number % 3 == 0 or number == len(run.looks) - 1:
            other.look(look)
    assert one.memory().progress.now == pytest.approx(other.memory().progress.now)
