"""When the watch speaks, what it says, and when it is silent: made-up traces (the recordings: test_stall_recorded.py)."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.model import Role
from mldebug.pulse import StallMemory
from mldebug.signals import Look, Progress, ProgressKind, RankLook, Stage
from mldebug.stall import StallWatch
from mldebug.stallrules import StallSettings
from traces import (
    BLIND,
    COMPILES,
    EXITED,
    LOOPS,
    ONE_LINE,
    RENDEZVOUS,
    SAVES,
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

CHATTY = SLEEPS._replace(io=200.0)  # another thread writes a line a second
LIGHT = Does(Role.INERT, "sleeps in next_batch (train.py:9)", cpu=0.03, switches=0.3)


def trained(seconds: float = 60, ranks: int = 4, every: float = 1.0) -> Run:
    return Run(ranks=ranks).train(seconds, every)


def ramp(run: Run) -> Run:
    """A batch-size ramp: steps grow from 1 s to 40 s."""
    return run.play(1800, TRAINS, every=lambda step: 1.0 + step * 0.7)


def irregular(run: Run) -> Run:
    dice = random.Random(7)
    return run.play(900, ONE_LINE, every=lambda _: dice.uniform(0.05, 3.0))


def grow(run: Run, seconds: int, does: Does | dict[int, Does]) -> Run:
    """A checkpoint whose bytes can be seen to grow."""
    for second in range(seconds):
        run.signal(ProgressKind.CHECKPOINT_BYTES, 8e8 * (second + 1))
        run.play(1, does, others=SPINS)
    return run


def chat(run: Run, seconds: int, does: Does | dict[int, Does], others: Does = WAITS) -> Run:
    """Some thread writes a line every second."""
    for _ in range(seconds):
        value = run.signals.get(ProgressKind.LOG_GROWTH)
        run.signal(ProgressKind.LOG_GROWTH, (value.value if value else 0) + 80)
        run.play(1, does, others=others)
    return run


def restart(run: Run, pause: float = 5) -> Run:
    """An elastic restart: the log of the old attempt is still there."""
    run.at += pause
    run.attempt, run.started = run.attempt + 1, False
    return run


def unlogged(ranks: int = 4) -> Run:
    run = Run(ranks=ranks)
    run.started = True
    return run


# --- it must speak: trace, settings, the window in which it opens, words that it says -----------------

SPEAKS: dict[str, tuple[Callable[[], Run], dict[str, object], tuple[float, float], str]] = {
    "one sleeps": (
        lambda: trained().play(60, {3: SLEEPS}),
        {"timeout": 15.0},
        (74, 76),
        "no step for 15 s (usual gap 1 s); 3 ranks wait in all_reduce; rank 3 sleeps in slow_data_loader",
    ),
    "auto after short steps": (
        lambda: trained().play(60, {3: SLEEPS}),
        {},
        (89, 91),
        "no step for 30 s",
    ),
    "auto after 10 s steps": (
        lambda: trained(300, every=10).play(120, {3: SLEEPS}),
        {},
        (349, 351),
        "no step for 50 s (usual gap 10 s)",
    ),
    "auto is at most 240 s": (
        lambda: trained(3000, every=100).play(400, {3: SLEEPS}),
        {},
        (3239, 3241),
        "no step for 240 s (usual gap 100 s)",
    ),
    "too few gaps: 240 s": (
        lambda: trained(5).play(400, {3: SLEEPS}),
        {},
        (244, 246),
        "no step for 240 s",
    ),
    "steps of 300 s get 450 s": (
        lambda: trained(6000, every=300).play(700, {3: SLEEPS}),
        {},
        (6449, 6451),
        "no step for 450 s",
    ),
    "a spinning waiter is a waiter": (
        lambda: trained().play(60, {3: SLEEPS}, others=SPINS),
        {"timeout": 15.0},
        (74, 76),
        "3 ranks wait in all_reduce; rank 3 sleeps",
    ),
    "spinning waiters, GPU unreadable, an inert culprit": (
        lambda: trained().play(60, {3: SLEEPS}, others=BLIND),
        {"timeout": 15.0},
        (74, 76),
        "3 ranks wait in all_reduce (GPU not readable); rank 3 sleeps",
    ),
    "all wait, frozen": (
        lambda: trained().play(60, WAITS),
        {"timeout": 15.0},
        (74, 76),
        "4 ranks wait in all_reduce",
    ),
    "all spin, GPUs make no progress": (
        lambda: trained().play(60, SPINS),
        {"timeout": 15.0},
        (74, 76),
        "4 ranks wait in all_reduce",
    ),
    "all spin, GPU unreadable: late": (
        lambda: trained().play(400, BLIND),
        {"timeout": 15.0},
        (359, 361),
        "4 ranks wait in all_reduce (GPU not readable)",
    ),
    "a stopped rank": (
        lambda: trained().play(60, {2: STOPPED}, others=SPINS),
        {"timeout": 15.0},
        (74, 76),
        "rank 2 is stopped",
    ),
    "a rank is gone, the others wait": (
        lambda: trained().play(60, {2: EXITED}, others=SPINS),
        {"timeout": 15.0},
        (74, 76),
        "rank 2 has exited",
    ),
    "all sleep: the job is paused": (
        lambda: trained().play(60, STOPPED),
        {"timeout": 15.0},
        (74, 76),
        "ranks 0-3: each is stopped",
    ),
    "busy rank, auto: 5 min": (
        lambda: trained().play(500, {0: WORKS}),
        {},
        (359, 361),
        "3 ranks wait in all_reduce; rank 0 runs evaluate",
    ),
    "busy rank: four timeouts": (
        lambda: trained().play(800, {0: WORKS}),
        {"timeout": 100.0},
        (459, 461),
        "rank 0 runs evaluate",
    ),
    "busy rank: busy_timeout as configured": (
        lambda: trained().play(500, {0: WORKS}),
        {"busy_timeout": 60.0},
        (119, 121),
        "rank 0 runs evaluate",
    ),
    "busy rank: before NCCL gives up": (
        lambda: trained().play(700, {0: WORKS}),
        {"timeout": 120.0},
        (509, 511),
        "no step for 450 s",
    ),
    "a rank that loops in one line is busy": (
        lambda: trained().play(500, {1: LOOPS}, others=SPINS),
        {"timeout": 15.0},
        (359, 361),
        "rank 1 runs tokenize_forever",
    ),
    "its GPU computes for ever": (
        lambda: trained().play(500, {1: SPINS._replace(device=True)}, others=SPINS),
        {"timeout": 15.0},
        (359, 361),
        "rank 1 computes on its GPU",
    ),
    "compiling too long": (
        lambda: trained().play(500, {1: COMPILES}),
        {"timeout": 15.0},
        (359, 361),
        "rank 1 compiles",
    ),
    "busy first, then frozen": (
        lambda: trained().play(100, {0: WORKS}).play(60, {0: SLEEPS}),
        {"timeout": 30.0},
        (173, 178),
        "rank 0 sleeps",
    ),
    "checkpoint that stops to grow": (
        lambda: grow(trained(), 60, {0: SAVES}).play(60, {0: SLEEPS._replace(state="D")}),
        {"timeout": 15.0},
        (133, 136),
        "rank 0 sleeps",
    ),
    "no signal at all: 60 s": (
        lambda: unlogged().play(60, TRAINS).play(120, {3: SLEEPS}),
        {},
        (119, 123),
        "no rank has moved for 60 s (no progress signal); 3 ranks wait",
    ),
    "no signal, spinning on idle GPUs": (
        lambda: unlogged().play(60, ONE_LINE).play(120, SPINS),
        {},
        (119, 123),
        "4 ranks wait in all_reduce",
    ),
    "no signal, one works and the others wait": (
        lambda: unlogged().play(60, TRAINS).play(500, {0: WORKS}),
        {},
        (359, 362),
        "rank 0 runs evaluate",
    ),
    "an unreadable log does not keep a hang alive": (
        lambda: chat(unlogged().play(60, TRAINS), 400, {3: CHATTY}),
        {},
        (299, 304),
        "no progress signal but lines in a log",
    ),
    "a chatty thread during a hang": (
        lambda: chat(trained(), 60, {3: CHATTY}),
        {"timeout": 15.0},
        (74, 76),
        "rank 3 sleeps",
    ),
    "init: somebody never came": (
        lambda: chat(Run(), 20, TRAINS).play(400, RENDEZVOUS),
        {},
        (319, 324),
        "before the first step",
    ),
    "init without a log: recognised by its class": (
        lambda: Run().play(20, TRAINS).play(400, RENDEZVOUS),
        {},
        (319, 324),
        "4 ranks wait in init_process_group",
    ),
    "init_timeout as configured": (
        lambda: chat(Run(), 20, TRAINS).play(400, RENDEZVOUS),
        {"init_timeout": 60.0},
        (79, 82),
        "before the first step",
    ),
    "init: indexing first, then nothing": (
        lambda: chat(Run(), 600, {0: WORKS}, RENDEZVOUS).play(400, RENDEZVOUS),
        {},
        (899, 921),  # samples are 15 s apart
        "before the first step",
    ),
    "after an elastic restart the first step never comes": (
        lambda: restart(trained()).play(20, TRAINS).play(400, RENDEZVOUS),
        {"timeout": 15.0},
        (380, 390),
        "before the first step",
    ),
    "two ranks": (
        lambda: trained(ranks=2).play(60, {1: SLEEPS}),
        {"timeout": 15.0},
        (74, 76),
        "rank 0 waits in all_reduce; rank 1 sleeps in slow_data_loader (train.py:7)",
    ),
    "64 ranks": (
        lambda: trained(ranks=64).play(60, {17: SLEEPS}),
        {"timeout": 15.0},
        (74, 76),
        "63 ranks wait in all_reduce; rank 17 sleeps",
    ),
    "after a batch-size ramp": (
        lambda: ramp(Run()).play(400, {3: SLEEPS}),
        {},
        (1940, 2045),
        "rank 3 sleeps",
    ),
}


@pytest.mark.parametrize("name", SPEAKS)
def test_it_speaks(name: str) -> None:
    trace, chosen, (soonest, latest), words = SPEAKS[name]

    story = watch(trace().looks, **chosen)

    assert len(story.opened) == 1, story.stages
    assert soonest <= story.opened[0] <= latest
    blamed = story.first(Stage.BLAMED)
    assert words in blamed.sentence
    assert "already" not in blamed.sentence
    assert blamed.capture


# --- it must be silent: trace, settings, whether a capture was kept ------------------------------------

SILENT: dict[str, tuple[Callable[[], Run], dict[str, object], bool]] = {
    "a healthy run": (lambda: trained(600), {}, False),
    "healthy, always in one line at full CPU": (
        lambda: Run().train(600, does=ONE_LINE),
        {"timeout": 15.0},
        False,
    ),
    "a growing checkpoint": (
        lambda: grow(trained(), 900, {0: SAVES}).train(30),
        {"timeout": 15.0},
        False,
    ),
    "a checkpoint nobody can see grow": (
        lambda: trained().play(60, {0: SAVES}, others=SPINS).train(30),
        {"timeout": 15.0},
        True,
    ),
    "evaluation of 60 s on GPUs": (
        lambda: trained().play(60, SPINS._replace(device=True)).train(30),
        {"timeout": 15.0},
        True,
    ),
    "evaluation of 20 min on GPUs": (
        lambda: trained().play(1200, SPINS._replace(device=True)).train(30),
        {},
        True,
    ),
    "evaluation of 20 min in Python": (lambda: trained().play(1200, WORKS).train(30), {}, True),
    "evaluation of 60 s, GPU unreadable": (
        lambda: trained().play(60, BLIND).train(30),
        {"timeout": 15.0},
        True,
    ),
    "rank 0 evaluates for 4 min": (
        lambda: trained().play(240, {0: WORKS}).train(30),
        {},
        True,
    ),
    "one rank compiles for 40 s": (
        lambda: trained().play(40, {1: COMPILES}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "slow input: asleep, but a step now and then": (
        lambda: trained().play(120, LIGHT).train(30),
        {"timeout": 15.0},
        True,
    ),
    "silent but stepping": (lambda: trained().play(900, TRAINS), {"timeout": 15.0}, True),
    "silent but stepping, never a log": (lambda: unlogged().play(900, TRAINS), {}, False),
    "no log, GPU unreadable, always in one line": (
        lambda: unlogged().play(900, ONE_LINE._replace(device=None)),
        {},
        False,
    ),
    "no log, evaluation, GPU unreadable": (lambda: unlogged().play(900, BLIND), {}, False),
    "irregular steps": (lambda: irregular(Run()), {}, False),
    "steps of 100 s": (
        lambda: Run().play(3000, WAITS._replace(device=True), every=lambda _: 100.0),
        {},
        False,
    ),
    "steps of 300 s that look frozen": (
        lambda: trained(1500, every=300).play(3000, WAITS, every=lambda _: 300.0),
        {},
        True,  # once, before the rhythm was known
    ),
    "a batch-size ramp that looks frozen": (
        lambda: Run().play(1800, WAITS, every=lambda step: 1.0 + step * 0.7),
        {},
        False,
    ),
    "a chatty thread in a healthy job": (lambda: chat(trained(), 1, TRAINS).train(300), {}, False),
    "a normal exit": (
        lambda: trained().play(5, {0: SLEEPS}, others=EXITED).play(300, EXITED),
        {"timeout": 15.0},
        False,
    ),
    "an upload after the others have left": (
        lambda: trained().play(900, {0: WORKS}, others=EXITED),
        {"timeout": 15.0},
        True,
    ),
    "an elastic restart": (
        lambda: restart(trained()).play(100, {0: WORKS}, others=RENDEZVOUS).train(60),
        {"timeout": 15.0},
        False,
    ),
    "an elastic restart in the middle of suspicion": (
        lambda: restart(trained().play(14, {3: SLEEPS})).play(60, RENDEZVOUS).train(60),
        {"timeout": 15.0},
        False,
    ),
    "indexing for 30 min before the first step": (
        lambda: chat(Run(), 1800, {0: WORKS}, RENDEZVOUS).train(60),
        {"timeout": 15.0},
        False,
    ),
    "compiling for 20 min before the first step": (
        lambda: chat(Run(), 20, TRAINS).play(1200, COMPILES).train(60),
        {"timeout": 15.0},
        False,
    ),
    "rendezvous for 4 min": (
        lambda: Run().play(20, TRAINS).play(240, RENDEZVOUS).train(60),
        {},
        False,
    ),
    "workers of a DataLoader at work": (
        lambda: trained().play(60, {1: SLEEPS._replace(process_cpu=3.0)}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "slow reading without CPU": (
        lambda: trained().play(60, {1: SLEEPS._replace(io=1e6)}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "a pause shorter than the timeout": (
        lambda: trained().play(28, {3: SLEEPS}).train(30),
        {},
        False,
    ),
    "a number is obeyed: 500 s": (
        lambda: trained().play(400, {3: SLEEPS}).train(30),
        {"timeout": 500.0},
        False,
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent(name: str) -> None:
    trace, chosen, captured = SILENT[name]

    story = watch(trace().looks, **chosen)

    assert story.opened == [], [d.sentence for _, d in story.said if d.open]
    assert bool(story.captured) == captured


def test_there_are_enough_traces() -> None:
    assert len(SPEAKS) + len(SILENT) >= 60


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


def test_the_inert_are_blamed_and_captured_twice() -> None:
    story = watch(trained().play(90, {3: SLEEPS}).looks, timeout=15.0)

    assert story.captured == pytest.approx([75, 105], abs=1)
    assert story.first(Stage.BLAMED).suspects == (3,)


def test_stalled_since_is_the_last_progress() -> None:
    blamed = watch(trained().play(60, {3: SLEEPS}).looks).first(Stage.BLAMED)

    assert blamed.stalled_since == pytest.approx(1060)
    assert blamed.timeout == 30
    assert blamed.why_timeout == "5 x 1 s, the 99th percentile of 58 gaps, at least 30 s"
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
    ("backend", "told", "expected"),
    [("nccl", None, 450), ("gloo", None, 800), ("nccl", 400.0, 300), ("nccl", 200.0, 200)],
)
def test_busy_is_blamed_before_the_evidence_dies(
    backend: str, told: float | None, expected: float
) -> None:
    run = trained()
    run.backend, run.collective_timeout = backend, told
    story = watch(run.play(1500, {0: WORKS}).looks, timeout=200.0)

    assert story.opened == pytest.approx([60 + expected], abs=1)


# --- recovery and widening -----------------------------------------------------------------------------


def test_a_false_alarm_recovers_and_widens_auto() -> None:
    run = trained().play(40, {3: SLEEPS}).train(60).play(33, {3: SLEEPS}).train(60)
    story = watch(run.looks)

    assert len(story.opened) == 1
    assert story.first(Stage.RECOVERED).sentence == "moves again after 41 s without a step"
    assert story.said[-1][1].timeout == pytest.approx(30 * 1.25 * 41 / 30, abs=0.1)
    assert "after false alarm" in story.said[-1][1].why_timeout


def test_auto_is_widened_at_most_twofold() -> None:
    run = trained()
    for _ in range(4):
        run.play(200, {3: SLEEPS}).train(60)
    story = watch(run.looks)

    assert len(story.opened) == 4
    assert story.said[-1][1].timeout == 60


def test_a_number_is_never_widened() -> None:
    run = trained()
    for _ in range(3):
        run.play(40, {3: SLEEPS}).train(20)
    story = watch(run.looks, timeout=15.0)

    assert len(story.opened) == 3
    assert {decision.timeout for _, decision in story.said[10:] if decision.timeout} == {15.0}


def test_without_a_signal_frames_that_advance_are_the_recovery() -> None:
    run = unlogged().play(30, TRAINS).play(100, {3: SLEEPS}).play(60, TRAINS)
    story = watch(run.looks)

    assert Stage.RECOVERED in story.stages
    assert story.said[-1][1].stage is Stage.WATCHING
    assert story.said[-1][1].timeout == 120


def test_each_stall_is_one_incident_with_its_own_key() -> None:
    run = trained().play(40, {3: SLEEPS}).train(20).play(40, {3: SLEEPS})
    story = watch(run.looks, timeout=15.0)

    keys = [decision.key for _, decision in story.said if decision.open]
    assert keys == ["run-7/0/60", "run-7/0/80"]


def test_an_incident_ends_with_the_job_or_the_attempt() -> None:
    exits = watch(trained().play(30, {3: SLEEPS}).play(5, EXITED).looks, timeout=15.0)
    again = watch(restart(trained().play(30, {3: SLEEPS})).train(30).looks, timeout=15.0)

    assert exits.first(Stage.ENDED).key == again.first(Stage.ENDED).key == "run-7/0/60"
    assert again.first(Stage.ENDED).sentence == "attempt 1 has begun"
    assert again.said[-1][1].stage is Stage.WATCHING


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
    keys = {d.key for _, d in (*first.said, *second.said) if d.stage is Stage.BLAMED}
    assert keys == {"run-7/0/60"}


def test_a_restarted_agent_knows_the_rhythm() -> None:
    first = watch(trained(600, every=10).looks)
    run = Run(start=1600)
    run.signal(ProgressKind.RECORD, 60)
    run.started = True
    story = watch(run.train(10, 10).looks, first.watch.memory())

    assert story.said[-1][1].timeout == 50


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


# --- properties ----------------------------------------------------------------------------------------

ANY = st.floats(allow_nan=True, allow_infinity=True)
RANKS = st.builds(
    RankLook,
    rank=st.integers(0, 5),
    role=st.sampled_from([None, *Role]),
    class_name=st.sampled_from(["", "init", "collective"]),
    doing=st.text(max_size=5),
    operation=st.text(max_size=5),
    frames_signature=st.sampled_from([None, "a", "b"]),
    cpu_ratio=ANY,
    switches=st.integers(-5, 10**9),
    io_bytes=st.integers(-5, 10**12),
    state=st.sampled_from(["", "R", "S", "D", "T", "Z"]),
    compiling=st.booleans(),
    device_progress=st.sampled_from([None, True, False]),
)
SIGNALS = st.builds(
    Progress, kind=st.sampled_from(ProgressKind), value=ANY, at=ANY, events=st.integers(-1, 5)
)
LOOKS = st.builds(
    Look,
    at=st.one_of(st.floats(0, 1e5), ANY),
    attempt=st.integers(0, 2),
    ranks=st.lists(RANKS, max_size=4).map(tuple),
    exited=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    progress=st.lists(SIGNALS, max_size=3).map(tuple),
    started=st.booleans(),
    backend=st.sampled_from(["nccl", "gloo", "mpi", ""]),
    collective_timeout=st.one_of(st.none(), ANY),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(LOOKS, max_size=25), st.sampled_from(["auto", 0.0, 15.0]))
def test_no_look_makes_it_raise(looks: list[Look], timeout: float | str) -> None:
    watcher = StallWatch(StallSettings(timeout=timeout, interval=1.0))  # type: ignore[arg-type]
    for look in looks:
        decision = watcher.look(look)
        assert not {"\n", "\x1b", "\u202e"} & set(decision.sentence)
        assert decision.next_look > 0
    msgspec.json.decode(msgspec.json.encode(watcher.memory()), type=StallMemory)


@settings(max_examples=20, deadline=None)
@given(st.integers(-900, 10**6))
def test_only_differences_of_time_count(shift: int) -> None:
    def run(start: float) -> Run:
        return (
            Run(start=start).train(40).play(50, {3: SLEEPS}).train(5).play(80, {0: WORKS}).train(5)
        )

    here, there = watch(run(1000.0).looks), watch(run(1000.0 + shift).looks)

    assert [d.stage for _, d in here.said] == [d.stage for _, d in there.said]
    assert [d.sentence for _, d in here.said] == [d.sentence for _, d in there.said]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.1, 14.0), min_size=5, max_size=60), st.sampled_from(["auto", 15.0]))
def test_progress_within_the_timeout_never_opens(pauses: list[float], timeout: str | float) -> None:
    run = Run(ranks=2).play(sum(pauses), WAITS, every=lambda step: pauses[step % len(pauses)])

    assert watch(run.looks, timeout=timeout).captured == []
