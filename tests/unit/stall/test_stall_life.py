"""The life of an incident: recovery, widening, restarts of the agent, pauses and clock jumps."""

import msgspec
import pytest

from mldebug.stall.progress_clock import StallMemory
from mldebug.stall.signals import ProgressKind, Stage
from shared.stall.plots import restart, trained, unlogged
from shared.stall.traces import (
    COPIES,
    EXITED,
    RENDEZVOUS,
    SLEEPS,
    SPINS,
    STOPPED,
    TRAINS,
    WAITS,
    Does,
    Run,
    watch,
)

# --- whose work is no movement of the rank ---------------------------------------------------------------


@pytest.mark.parametrize("stands", [SLEEPS, STOPPED], ids=["sleeps", "stopped"])
@pytest.mark.parametrize(
    "beside",
    [{"process_cpu": 0.3}, {"children_cpu": 0.1}, {"children_io": 1e6}, {"io": 1e6}],
    ids=["thread", "child", "child's I/O", "thread's I/O"],
)
def test_nobody_sets_a_sleeper_free(stands: Does, beside: dict[str, float]) -> None:
    """A metrics thread, or a child that polls, goes on beside a hang of the main thread."""
    run = trained()
    hung = run.at - run.looks[0].at
    (opened,) = watch(run.play(60, {1: stands._replace(**beside)}).looks, timeout=15.0).opened
    assert opened - hung <= 20.0


@pytest.mark.parametrize("first", [0, 1])
def test_work_in_bursts_between_two_marks_is_seen(first: int) -> None:
    """Looks come twice a second while it suspects, counters are compared once: a burst must not fall between."""
    run = Run(interval=0.5).train(60)
    for look in range(120):
        run.play(0.5, {0: COPIES._replace(children_io=5e6 * ((look + first) % 2))})
    assert watch(run.train(20).looks, timeout=15.0).opened == []


# --- recovery and widening -----------------------------------------------------------------------------


def test_a_false_alarm_recovers_and_widens_auto() -> None:
    run = trained().play(40, {3: SLEEPS}).train(60).play(33, {3: SLEEPS}).train(60)
    story = watch(run.looks)

    assert len(story.opened) == 1
    assert story.first(Stage.RECOVERED).sentence == "moves again after 41 s without a step"
    assert story.decisions[-1][1].timeout == pytest.approx(30 * 1.25 * 41 / 30, abs=0.1)
    assert "after false alarm" in story.decisions[-1][1].why_timeout


def test_auto_is_widened_at_most_twofold() -> None:
    run = trained()
    for _ in range(4):
        run.play(200, {3: SLEEPS}).train(60)
    story = watch(run.looks)

    assert len(story.opened) == 4
    assert story.decisions[-1][1].timeout == 60


def test_a_number_is_never_widened() -> None:
    run = trained()
    for _ in range(3):
        run.play(40, {3: SLEEPS}).train(20)
    story = watch(run.looks, timeout=15.0)

    assert len(story.opened) == 3
    assert {decision.timeout for _, decision in story.decisions[10:] if decision.timeout} == {15.0}


def test_without_a_signal_frames_that_advance_are_the_recovery() -> None:
    run = unlogged().play(30, TRAINS).play(100, {3: SLEEPS}).play(60, TRAINS)
    story = watch(run.looks)

    assert Stage.RECOVERED in story.stages
    assert story.decisions[-1][1].stage is Stage.WATCHING
    assert story.decisions[-1][1].timeout == 120


def test_each_stall_is_one_incident_with_its_own_key() -> None:
    run = trained().play(40, {3: SLEEPS}).train(20).play(40, {3: SLEEPS})
    story = watch(run.looks, timeout=15.0)

    keys = [decision.key for _, decision in story.decisions if decision.open]
    assert keys == ["run-7/0/60", "run-7/0/80"]


def test_an_incident_ends_with_the_job_or_the_attempt() -> None:
    exits = watch(trained().play(30, {3: SLEEPS}).play(5, EXITED).looks, timeout=15.0)
    again = watch(restart(trained().play(30, {3: SLEEPS})).train(30).looks, timeout=15.0)

    assert exits.first(Stage.ENDED).key == again.first(Stage.ENDED).key == "run-7/0/60"
    assert again.first(Stage.ENDED).sentence == "attempt 1 has begun"
    assert again.decisions[-1][1].stage is Stage.WATCHING


# --- came late, came back ------------------------------------------------------------------------------


def test_hung_before_the_agent_came() -> None:
    run = Run()
    run.started = True
    run.signal(ProgressKind.RECORD, 4711, at=run.at - 3600)
    story = watch(run.play(90, {3: SLEEPS}).looks)

    assert story.opened == pytest.approx([31], abs=2)
    blamed = story.first(Stage.BLAMED)
    assert blamed.sentence.startswith("already stalled when the agent came: no step for 363")
    assert blamed.stalled_since == pytest.approx(1001 - 3601, abs=2)
    assert blamed.key == "run-7/0/4711"


def test_hung_before_the_agent_came_and_no_log() -> None:
    story = watch(unlogged().play(90, {3: SLEEPS}).looks)

    assert story.opened == pytest.approx([61], abs=2)
    assert story.first(Stage.BLAMED).sentence.startswith("already stalled")


def test_a_long_evaluation_when_the_agent_comes_is_no_stall() -> None:
    run = Run()
    run.started = True
    run.signal(ProgressKind.RECORD, 4711, at=run.at - 3600)

    assert watch(run.play(300, SPINS._replace(device=True)).train(60).looks).opened == []


@pytest.mark.parametrize("cut", [30, 60, 68, 74, 80, 95, 110])
def test_a_restart_of_the_agent_changes_nothing_but_a_little_time(cut: int) -> None:
    looks = trained().play(90, {3: SLEEPS}).looks
    first = watch(looks[:cut], timeout=20.0)
    kept = msgspec.json.decode(msgspec.json.encode(first.watch.memory()), type=StallMemory)
    second = watch(looks[cut + 3 :], kept, timeout=20.0)

    opened = first.opened + [cut + 3 + at for at in second.opened]
    assert len(opened) == 1
    assert 79 <= opened[0] <= max(80, cut + 3 + 11)
    keys = {d.key for _, d in (*first.decisions, *second.decisions) if d.stage is Stage.BLAMED}
    assert keys == {"run-7/0/60"}


def test_a_restarted_agent_knows_the_rhythm() -> None:
    first = watch(trained(600, every=10).looks)
    run = Run(start=1600)
    run.signal(ProgressKind.RECORD, 60)
    run.started = True
    story = watch(run.train(10, 10).looks, first.watch.memory())

    assert story.decisions[-1][1].timeout == 50


def test_a_restarted_agent_sees_the_recovery() -> None:
    looks = trained().play(60, {3: SLEEPS}).train(10).looks
    memory = watch(looks[:100], timeout=20.0).watch.memory()

    assert Stage.RECOVERED in watch(looks[103:], memory, timeout=20.0).stages


def test_no_recovery_is_made_up_by_a_restart() -> None:
    looks = unlogged().play(30, TRAINS).play(300, {3: SLEEPS}).looks
    memory = watch(looks[:150]).watch.memory()
    story = watch(looks[150:], memory)

    assert story.stages == [Stage.BLAMED]
    assert story.opened == []


def test_a_pause_of_the_agent_is_not_held_against_the_job() -> None:
    """Stopped for ten minutes: the log reader has read nothing, either."""
    run = trained(60)
    run.at += 600
    run.play(8, WAITS)

    assert watch(run.looks, timeout=15.0).opened == []
    assert watch(run.play(20, WAITS).looks, timeout=15.0).opened != []


def test_a_clock_that_jumps_back_is_survived() -> None:
    run = trained(60)
    run.at -= 5000
    run.train(60).play(40, {3: SLEEPS})

    assert watch(run.looks, timeout=15.0).opened == pytest.approx([60 - 5000 + 75], abs=2)


def test_a_new_run_in_the_same_attempt_begins_anew() -> None:
    run = trained().play(5, EXITED)
    run.started = False
    run.play(60, RENDEZVOUS).train(30)

    story = watch(run.looks, timeout=15.0)
    assert story.opened == []
    assert Stage.ENDED in story.stages
