"""A pause of the whole program is no hang at the timeout of its steps: all ranks in the same frames of their own, of which none waits for another."""

import pytest

from mldebug.stall.signals import Progress, ProgressKind, RunLook, Stage
from mldebug.stall.stillness import RunActivity
from shared.stall.plots import FSYNC
from shared.stall.traces import (
    JOINS,
    LOADS,
    LOOPS,
    SLEEPS,
    SPINS,
    STOPPED,
    TRAINS,
    WAITS,
    WORKS,
    Does,
    Run,
    watch,
)

LOOKS = 5.0
UPLOADS = SLEEPS._replace(doing="publish (train.py:88)", class_name="socket")
NOBODY_KNOWS = SLEEPS._replace(doing="does nothing in step (train.py:9)", class_name="idle")

PAUSES: dict[str, Does] = {
    "an upload that its server answers late": UPLOADS,
    "a child that the program waits for": UPLOADS._replace(class_name="child_wait"),
    "a lock on a shared file": UPLOADS._replace(class_name="file_lock"),
    "a thread that ends": JOINS,
    "a request in a loop with pauses": SLEEPS,
    "a data loader that shuffles on a server": LOADS,
    "a future": UPLOADS._replace(class_name="future"),
}


def stepping(run: Run, seconds: float, rate: float = 25.0) -> Run:
    for _ in range(int(seconds / LOOKS)):
        run.at += LOOKS
        before = run.signals.get(ProgressKind.STEP)
        run.signal(ProgressKind.STEP, (before.value if before else 0) + rate * LOOKS)
        run.started = True
        run.look(TRAINS)
    return run


def trained(steady: float, ranks: int = 4, load: float = 20.0) -> Run:
    """A run that has loaded for a while, and then made 25 steps a second for so long."""
    return stepping(Run(ranks, interval=LOOKS).play(load, WORKS), steady)


def begun(run: Run) -> float:
    return run.at - run.looks[0].at


def opened(looks: list[RunLook], hung: float, **settings: float) -> list[float]:
    """Seconds from that moment to each alarm."""
    return [at - hung for at in watch(looks, interval=LOOKS, **settings).opened]


@pytest.mark.parametrize("steady", [5.0, 10.0, 20.0, 60.0, 600.0])
@pytest.mark.parametrize("pause", PAUSES)
def test_all_ranks_in_one_place_of_their_own_for_three_minutes_raise_nothing(pause: str, steady: float) -> None:  # fmt: skip
    run = trained(steady)
    paused = begun(run)
    run.play(180, PAUSES[pause])
    assert opened(stepping(run, 60).looks, paused) == []


@pytest.mark.parametrize("pause", PAUSES)
def test_such_a_hang_is_captured_at_the_timeout_and_named_in_four_minutes(pause: str) -> None:
    run = trained(60)
    hung = begun(run)
    story = watch(run.play(400, PAUSES[pause]).looks, interval=LOOKS)
    assert [at - hung <= 40 for at in story.captured][:1] == [True]
    assert len(story.opened) == 1
    assert 235 <= story.opened[0] - hung <= 250


@pytest.mark.parametrize("pause", PAUSES)
def test_a_minute_of_the_only_rank_of_a_job_or_of_all_of_a_node_raises_nothing(pause: str) -> None:
    for ranks, elsewhere in ((1, False), (4, True)):
        run = trained(60, ranks)
        run.elsewhere = elsewhere
        paused = begun(run)
        run.play(60, PAUSES[pause])
        assert opened(stepping(run, 60).looks, paused) == []
        hung = begun(run)
        late = opened(run.play(200, PAUSES[pause]).looks, hung)
        assert len(late) == 1
        assert late[0] <= 100  # a pause of a minute was survived


@pytest.mark.parametrize("lasts", [60.0, 120.0, 230.0])
def test_a_hang_after_such_a_pause_is_named_as_soon_as_ever(lasts: float) -> None:
    """It was 1.5 x the pause that the run had survived: 345 s after one of 230 s, for thousands of steps."""
    run = stepping(trained(60).play(lasts, UPLOADS), 600)
    hung = begun(run)
    run.play(100, {1: UPLOADS})
    late = opened(run.looks, hung)
    assert len(late) == 1
    assert late[0] <= 50


def test_such_pauses_that_come_again_raise_nothing() -> None:
    run = trained(60)
    paused = begun(run)
    for _ in range(4):
        stepping(run.play(180, UPLOADS), 120)
    assert opened(run.looks, paused) == []


HANGS: dict[str, dict[int, Does] | Does] = {
    "one uploads, the others wait for it": {1: UPLOADS},
    "one uploads, the others spin": {1: UPLOADS} | dict.fromkeys((0, 2, 3), SPINS),
    "three upload, one waits for them": {1: UPLOADS, 2: UPLOADS, 3: UPLOADS},
    "all wait for each other": WAITS,
    "all spin for each other": SPINS,
    "in places of their own": {n: UPLOADS._replace(doing=f"part {n}") for n in range(4)},
    "two sleep, two upload": {0: SLEEPS, 1: SLEEPS, 2: UPLOADS, 3: UPLOADS},
    "all are stopped": STOPPED,
    "storage blocks all": FSYNC,
    "storage blocks a worker of every data loader": LOADS._replace(children_blocked=True),
    "nobody knows what all wait for": NOBODY_KNOWS,
}


@pytest.mark.parametrize("steady", [20.0, 600.0])
@pytest.mark.parametrize("hang", HANGS)
def test_what_is_no_such_pause_is_named_within_a_minute(hang: str, steady: float) -> None:
    run = trained(steady)
    hung = begun(run)
    late = opened(run.play(200, HANGS[hang]).looks, hung)
    assert len(late) == 1
    assert late[0] <= 50


def test_a_timeout_from_the_config_is_kept_to() -> None:
    run = trained(60)
    hung = begun(run)
    late = opened(run.play(60, UPLOADS).looks, hung, timeout=15.0)
    assert len(late) == 1
    assert late[0] <= 35  # by looks 5 s apart


def test_it_ends_before_torch_ends_the_job() -> None:
    run = trained(60)
    run.collective_timeout = 120.0
    hung = begun(run)
    late = opened(run.play(200, UPLOADS).looks, hung)
    assert len(late) == 1
    assert late[0] <= 95


# --- before the rhythm of a run is known ---------------------------------------------------------------


@pytest.mark.parametrize("load", [5.0, 20.0, 40.0, 60.0])
@pytest.mark.parametrize("culprit", [SLEEPS, LOADS, UPLOADS])
def test_a_hang_after_the_first_sign_of_progress_is_named_within_90_s(culprit: Does, load: float) -> None:  # fmt: skip
    """It was 5 x the time to the first step: 125 s after a start of 20 s, 240 s after one of 60 s."""
    run = trained(LOOKS, load=load)
    hung = begun(run)
    late = opened(run.play(300, {2: culprit}, others=SPINS).looks, hung)
    assert len(late) == 1
    assert late[0] <= 85


def test_a_second_step_as_long_as_the_first_raises_nothing() -> None:
    run = trained(LOOKS, load=100)
    paused = begun(run)
    run.play(100, {2: LOADS}, others=SPINS)
    assert opened(stepping(run, 60).looks, paused) == []


def bursts(seconds: float) -> Run:
    """wandb's offline file: its records come every 15 s, 150 at once."""
    run = Run(interval=LOOKS).play(20, WORKS)
    run.started = True
    for number in range(int(seconds / 15)):
        run.play(10, TRAINS)
        run.at += LOOKS
        value, at = 150 * (number + 1), run.at - 1.0
        burst = Progress(kind=ProgressKind.RECORD, value=value, at=at, events=150)
        run.signals[ProgressKind.RECORD] = burst
        run.look(TRAINS)
    return run


def test_two_bursts_of_many_steps_are_a_rhythm() -> None:
    """It was 45 s while there were fewer than four of them: a hang after half a minute was named at 53 to 61 s."""
    run = bursts(30)
    hung = begun(run)
    late = opened(run.play(120, {2: UPLOADS}, others=SPINS).looks, hung)
    assert len(late) == 1
    assert late[0] <= 45


def test_a_rank_that_works_right_after_two_bursts_has_as_long_as_ever() -> None:
    run = bursts(30).play(380, {0: WORKS}, others=SPINS)
    assert watch(run.looks, interval=LOOKS).opened == []


# --- the first epoch of a bar that counts epochs, on CPUs ------------------------------------------------

BACKWARD = TRAINS._replace(doing="runs backward in train.py:20", class_name="backward")


def epochs(seconds: float) -> Run:
    """A run without GPUs that draws a bar at 0, and trains; its samples show forward and backward passes by turns."""
    run = Run(interval=LOOKS).play(20, WORKS)
    run.backend = "gloo"
    run.signal(ProgressKind.RECORD, 1)
    run.signal(ProgressKind.STEP, 0)
    run.look(WORKS)
    for turn in range(int(seconds / 15)):
        run.play(15, (TRAINS, BACKWARD)[turn % 2])
    return run


@pytest.mark.parametrize("culprit", [SLEEPS, LOADS, UPLOADS])
def test_a_hang_in_the_first_epoch_on_cpus_is_named_within_90_s(culprit: Does) -> None:
    run = epochs(300)
    hung = begun(run)
    late = opened(run.play(300, {2: culprit}).looks, hung)
    assert len(late) == 1
    assert late[0] <= 90


def test_a_rank_that_never_comes_there_is_noticed_before_gloo_ends_the_job() -> None:
    run = epochs(300)
    hung = begun(run)
    late = opened(run.play(1500, {2: LOOPS}).looks, hung)
    assert len(late) == 1
    assert late[0] <= 1250


def test_lines_that_are_read_during_the_first_backward_pass_make_no_second_one_of_it() -> None:
    """Each forgot what the rank had been seen doing, so that it seemed to come there anew."""
    ranks, run = RunActivity(), Run(interval=LOOKS).play(30, BACKWARD._replace(stands=True))
    for number, look in enumerate(run.looks):
        ranks.update(look, number * LOOKS)
        ranks.forget(number * LOOKS)
    assert not ranks.trained


@pytest.mark.parametrize("start", [SPINS, WAITS, UPLOADS, LOADS, BACKWARD._replace(stands=True)])
def test_a_start_of_four_minutes_is_no_first_epoch(start: Does) -> None:
    """Whoever connects in its first backward pass was in no second one."""
    run = epochs(0).play(240, {1: start}, others=WAITS)
    story = watch(run.looks, interval=LOOKS)
    assert story.opened == []
    assert Stage.BLAMED not in story.stages
