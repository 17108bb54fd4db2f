"""Three stages: what is sampled, captured and said on the way, and for whom the busy limit holds."""

import msgspec
import pytest

from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Stage
from shared.stall.plots import trained, unlogged
from shared.stall.traces import (
    BLIND,
    ONE_LINE,
    SAVES,
    SLEEPS,
    SPINS,
    TRAINS,
    WAITS,
    WORKS,
    Does,
    Run,
    watch,
)

# --- three stages -------------------------------------------------------------------------------------


def test_the_stages_in_order() -> None:
    story = watch(trained().play(60, {3: SLEEPS}).train(5).looks, timeout=20.0)

    assert story.stages == [
        Stage.WATCHING,
        Stage.QUIET,
        Stage.SUSPECT,
        Stage.BLAMED,
        Stage.RECOVERED,
        Stage.WATCHING,
    ]


def test_a_decision_says_how_long_the_run_usually_makes_no_progress() -> None:
    story = watch(trained(every=2.0).play(60, {3: SLEEPS}).looks)

    assert story.first(Stage.BLAMED).usual_gap == pytest.approx(2.0, abs=0.1)


def test_suspicion_begins_at_half_the_timeout_though_all_ranks_are_active() -> None:
    story = watch(trained().play(60, SPINS._replace(device=True)).looks, timeout=20.0)

    suspect = story.times(lambda decision: decision.stage is Stage.SUSPECT)
    assert 69 <= suspect[0] <= 70
    assert story.captured[0] == pytest.approx(79, abs=1)


@pytest.mark.parametrize("timeout", [15.0, 30.0, 240.0])
def test_at_least_eight_samples_are_spread_over_the_second_half(timeout: float) -> None:
    run = trained()
    run.interval = 0.25
    story = watch(run.play(timeout, {3: SLEEPS}).looks, timeout=timeout)

    samples = story.times(lambda decision: decision.sample)
    assert len([at for at in samples if 60 + timeout / 2 <= at < 60 + timeout]) >= 8
    assert min(samples) >= 60 + timeout / 2 - 1
    assert max(samples) - min(samples) >= timeout / 2 * 0.7


def test_the_next_look_comes_in_time_for_half_and_whole_timeout() -> None:
    run = trained(60)
    watcher = StallWatch(StallSettings(timeout=15.0, interval=5.0))
    for look in run.looks[:-1]:
        watcher.look(look)
    decision, opened = watcher.look(run.looks[-1]), None
    while opened is None and run.at < 1200:
        run.interval = decision.next_look
        run.play(run.interval, {3: SLEEPS})
        decision = watcher.look(run.looks[-1])
        opened = run.at if decision.open else None

    assert opened is not None
    assert opened - 1060 <= 15.0 + 1.0


def test_nothing_is_sampled_while_the_job_moves() -> None:
    assert watch(trained(600).looks, timeout=15.0).times(lambda decision: decision.sample) == []


def test_a_capture_is_kept_at_the_timeout_and_at_the_blame_and_30_s_later() -> None:
    story = watch(trained().play(400, {0: WORKS}).looks, timeout=15.0)

    assert story.captured == pytest.approx([75, 360, 390], abs=1)


def test_the_inert_are_captured_shortly_before_they_are_blamed_then_and_30_s_later() -> None:
    story = watch(trained().play(90, {3: SLEEPS}).looks, timeout=15.0)

    assert story.captured == pytest.approx([71, 75, 105], abs=1)
    assert story.first(Stage.BLAMED).suspects == (3,)


def test_a_flight_recorder_that_may_still_come_is_looked_for_once_more() -> None:
    """A full one takes a minute: the second capture comes too early for it."""
    run = trained().play(300, {3: SLEEPS})
    watcher = StallWatch(StallSettings(timeout=15.0, interval=1.0))
    captured = []
    for look in run.looks:
        if watcher.look(look).capture:
            captured.append(look.at)
            watcher.await_answer(True)

    assert captured == pytest.approx([1071, 1075, 1105, 1165], abs=1)


def test_stalled_since_is_the_last_progress() -> None:
    blamed = watch(trained().play(60, {3: SLEEPS}).looks).first(Stage.BLAMED)

    assert blamed.stalled_since == pytest.approx(1060)
    assert blamed.timeout == 30
    assert blamed.why_timeout == "5 x 1 s, the 99th percentile of 56 gaps, at least 30 s"
    assert blamed.key == "run-7/0/60"


def test_frames_that_move_are_not_frozen() -> None:
    """Standing still by its counters, but in another place in every sample."""
    moves = SLEEPS._replace(stands=False)

    assert watch(trained().play(100, {3: moves}).looks, timeout=15.0).opened == []


def test_the_stack_of_an_earlier_suspicion_counts_for_nothing() -> None:
    run = trained().play(12, {3: WORKS}).train(3).play(30, {3: SLEEPS})

    assert watch(run.looks, timeout=15.0).opened == pytest.approx([90], abs=1)


def test_without_py_spy_counters_alone_find_the_frozen() -> None:
    run = trained().play(60, {3: SLEEPS})
    watcher = StallWatch(StallSettings(timeout=15.0, interval=1.0))
    bare = [
        msgspec.structs.replace(
            look,
            ranks=tuple(
                msgspec.structs.replace(rank, role=None, frames_signature=None)
                for rank in look.ranks
            ),
        )
        for look in run.looks
    ]

    opened = [look.at for look in bare if watcher.look(look).open]

    assert opened == pytest.approx([1075], abs=1)


# --- gloo, NCCL and what Flight Recorder tells ---------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "number", "expected"),
    [("nccl", None, 450), ("gloo", None, 800), ("nccl", 400.0, 300), ("nccl", 200.0, 200)],
)
def test_busy_is_blamed_before_the_evidence_dies(
    backend: str, number: float | None, expected: float
) -> None:
    run = trained()
    run.backend, run.collective_timeout = backend, number
    story = watch(run.play(1500, {0: WORKS}).looks, timeout=200.0)

    assert story.opened == pytest.approx([60 + expected], abs=1)


# --- what a rank says it does --------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["evaluate", "checkpoint_save", "checkpoint_load", "compile"])
@pytest.mark.parametrize(
    ("backend", "number", "expected"), [("nccl", None, 450), ("gloo", None, 1350), ("nccl", 900.0, 675)]
)  # fmt: skip
def test_who_says_why_it_makes_no_step_is_blamed_before_the_evidence_dies(
    phase: str, backend: str, number: float | None, expected: float
) -> None:
    run = trained()
    run.backend, run.collective_timeout = backend, number
    story = watch(run.play(1500, {0: WORKS._replace(phase=phase)}).looks)

    assert story.opened == pytest.approx([60 + expected], abs=1)


@pytest.mark.parametrize("phase", [None, "data_wait", "warm up"])
def test_another_phase_gives_no_patience(phase: str | None) -> None:
    story = watch(trained().play(600, {0: WORKS._replace(phase=phase)}).looks)

    assert story.opened == pytest.approx([60 + 300], abs=1)


@pytest.mark.parametrize("phase", ["evaluate", "checkpoint_save", "checkpoint_load", "compile"])
def test_a_hang_inside_of_a_phase_is_blamed_at_the_timeout(phase: str) -> None:
    """It says what it does, and does not move."""
    for stuck in (SLEEPS, SLEEPS._replace(state="D")):
        story = watch(trained().play(120, {3: stuck._replace(phase=phase)}).looks)
        assert story.opened == pytest.approx([60 + 30], abs=1)
        assert story.first(Stage.BLAMED).suspects == (3,)


def test_a_sleeper_is_blamed_at_the_timeout_whatever_phase_its_waiters_are_in() -> None:
    waits = WAITS._replace(phase="evaluate")
    story = watch(trained().play(120, {3: SLEEPS}, others=waits).looks)

    assert story.opened == pytest.approx([60 + 30], abs=1)
    assert story.first(Stage.BLAMED).suspects == (3,)


@pytest.mark.parametrize("phase", ["evaluate", "checkpoint_save", "checkpoint_load", "compile"])
@pytest.mark.parametrize("waits", [WAITS, SPINS, BLIND])
def test_the_phase_of_a_waiter_gives_no_patience_to_who_is_busy(phase: str, waits: Does) -> None:
    """They wait in their save for one that trains."""
    story = watch(trained().play(600, {0: WORKS}, others=waits._replace(phase=phase)).looks)
    assert story.opened == pytest.approx([60 + 300], abs=1)
    assert story.first(Stage.BLAMED).suspects == (0,)


def test_without_a_log_the_phase_of_a_waiter_gives_no_patience_either() -> None:
    waits = WAITS._replace(phase="checkpoint_save")
    (opened,) = watch(unlogged().play(900, {0: WORKS}, others=waits).looks).opened

    (expected,) = watch(unlogged().play(900, {0: WORKS}).looks).opened
    assert opened == pytest.approx(expected, abs=1)


def test_the_phase_of_a_waiter_excuses_no_device() -> None:
    """A kernel that never ends, beside ranks that wait in their save."""
    run = trained()
    run.backend, run.collective_timeout = "gloo", 7200.0
    waits = WAITS._replace(phase="checkpoint_save")
    story = watch(run.play(3000, {0: ONE_LINE}, others=waits).looks)

    assert story.opened == pytest.approx([60 + 300], abs=1)


@pytest.mark.parametrize("phase", ["evaluate", "compile"])
def test_who_may_be_computing_on_an_unreadable_device_is_believed(phase: str) -> None:
    run = trained().play(400, BLIND._replace(phase=phase)).train(30)

    assert watch(run.looks).opened == []


def test_a_phase_that_ended_gives_no_patience() -> None:
    run = trained().play(200, {0: WORKS._replace(phase="evaluate")}).play(400, {0: WORKS})

    assert watch(run.looks).opened == pytest.approx([60 + 300], abs=1)


def test_who_freezes_after_it_has_moved_in_its_phase_is_blamed() -> None:
    """The save began well and hangs since."""
    saves = WORKS._replace(phase="checkpoint_save")
    stuck = SLEEPS._replace(phase="checkpoint_save", state="D")
    run = trained().play(320, {0: saves}).play(100, {0: stuck})

    (opened,) = watch(run.looks).opened
    assert 60 + 320 < opened <= 60 + 320 + 30


def test_a_busy_timeout_set_by_hand_is_obeyed_in_any_phase() -> None:
    run = trained().play(600, {0: WORKS._replace(phase="evaluate")})

    assert watch(run.looks, busy_timeout=120.0).opened == pytest.approx([60 + 120], abs=1)


def test_a_number_is_obeyed_though_the_evidence_dies_before() -> None:
    run = trained()
    run.collective_timeout = 100.0

    assert watch(run.play(400, {3: SLEEPS}).looks, timeout=200.0).opened == pytest.approx(
        [260], abs=1
    )


@pytest.mark.parametrize(("steps", "blamed"), [(3, 45), (60, 24)])
def test_auto_ends_before_the_evidence_dies(steps: int, blamed: int) -> None:
    """As long as nothing is known of the rhythm, there is at least a capture."""
    run = trained(steps)
    run.collective_timeout = 32.0
    story = watch(run.play(400, {3: SLEEPS}).looks)

    before = 4 if blamed == 24 else 0  # where it is blamed then, it is captured a little earlier
    assert story.captured[0] == pytest.approx(steps - 1 + 24 - before, abs=1)
    assert story.opened == pytest.approx([steps - 1 + blamed], abs=1)
    assert "a collective may end the job after 32 s" in story.first(Stage.BLAMED).why_timeout


def test_whose_usual_gap_outlasts_a_collective_is_captured_early_and_blamed_late() -> None:
    hung = trained(6000, every=600).play(1200, {3: SLEEPS})
    story = watch(hung.looks)

    assert story.opened == pytest.approx([5999 + 900], abs=1)
    assert next(at for at in story.captured if at > 6000) == pytest.approx(5999 + 450, abs=1)
    early = next(one for at, one in story.decisions if at > 6000 and one.stage is Stage.CONFIRMED)
    assert early.sentence.endswith("; blamed at 900 s")


def test_steps_that_outlast_short_collectives_are_not_captured_each() -> None:
    run = Run()
    run.collective_timeout = 30.0

    story = watch(run.train(1800, every=60, does=WAITS).looks)

    assert story.opened == []
    assert len(story.captured) == 1  # before the rhythm was known


def test_a_wait_for_another_node_is_captured_each_time() -> None:
    run = unlogged(elsewhere=True).play(60, TRAINS)
    for _ in range(2):
        run.play(200, SPINS).play(120, TRAINS)
    story = watch(run.looks)

    assert story.opened == []
    assert len(story.captured) == 2
    confirmed = story.first(Stage.CONFIRMED).sentence
    assert "4 ranks wait in all_reduce; blamed at 450 s" in confirmed


def test_what_a_rank_has_written_is_told_while_it_saves() -> None:
    story = watch(trained().play(100, {0: SAVES}, others=SPINS).looks)

    sentences = [one.sentence for _, one in story.decisions if one.stage is Stage.SUSPECT]
    assert sentences[-1] == "no step for 100 s (usual gap 1 s): rank 0 has written 80 GB"


# --- words ---------------------------------------------------------------------------------------------


def test_job_written_text_cannot_break_the_line() -> None:
    evil = SLEEPS._replace(doing="sleeps\x1b[2J\nin \u202eevil")
    sentence = watch(trained().play(40, {3: evil}).looks, timeout=15.0).first(Stage.BLAMED).sentence

    assert sentence.isprintable()


def test_many_different_suspects_stay_one_sentence() -> None:
    crew = {n: SLEEPS._replace(doing=f"sleeps in place_{n}") for n in range(40)}
    sentence = (
        watch(trained(ranks=64).play(40, crew).looks, timeout=15.0).first(Stage.BLAMED).sentence
    )

    assert sentence.endswith("; 37 more")
    assert len(sentence) < 300


def test_a_confirmed_stall_says_until_when_it_waits() -> None:
    confirmed = watch(trained().play(60, {0: WORKS}).looks, timeout=15.0).first(Stage.CONFIRMED)

    assert confirmed.sentence == (
        "no step for 15 s (usual gap 1 s); 3 ranks wait in all_reduce; "
        "rank 0 runs evaluate (train.py:40); blamed at 300 s"
    )
