"""Frozen or slow: what several samples of one process say."""

import pytest

from mldebug.capture.movement import ProcessSample, movement, usual_state
from mldebug.core.model import (
    Io,
    ProcessCapture,
    ProcessState,
    RankCapture,
    RankIdentity,
    ThreadState,
)
from mldebug.diagnosis.classify.rank_class import classify
from shared.diagnosis.builders import stack


def sample(
    at: float, frames: tuple[str, ...], cpu: float, switches: int, io: int = 0
) -> ProcessSample:
    main = ThreadState(tid=7, state="S", cpu_seconds=cpu, voluntary_switches=switches)
    helper = ThreadState(tid=8, state="S", cpu_seconds=2 * cpu, voluntary_switches=900)
    state = ProcessState(pid=7, threads=(main, helper), io=Io(read_chars=io))
    return ProcessSample(at, state, (stack(*frames, tid=7),))


def test_a_frozen_process() -> None:
    found = movement(
        7, [sample(t, ("wait (a.py:3)",), cpu=1.0, switches=5) for t in (0.0, 1.0, 2.0)]
    )

    assert (found.samples, found.span_seconds, found.same_frames) == (3, 2.0, True)
    assert (found.cpu_ratio, found.process_cpu_ratio, found.switches, found.io_chars) == (
        0.0,
        0.0,
        0,
        0,
    )


def test_a_process_that_goes_on() -> None:
    found = movement(
        7, [sample(0.0, ("f (a.py:3)",), 1.0, 5), sample(2.0, ("f (a.py:4)",), 2.0, 25, io=100)]
    )

    assert (found.same_frames, found.same_function) == (False, True)
    assert (found.cpu_ratio, found.process_cpu_ratio, found.switches, found.io_chars) == (
        0.5,
        1.5,
        20,
        100,
    )


def test_the_counters_are_those_of_the_thread_that_speaks() -> None:
    """Training in a thread: the main thread only joins it."""
    main, trainer = (
        stack("join (threading.py:9)", tid=7),
        stack("wait (torch/autograd/x.py:3)", "t (t.py:1)", tid=8, name="T"),
    )
    samples = [
        sample(t, (), cpu=t, switches=3)._replace(stacks=(main, trainer)) for t in (0.0, 1.0)
    ]

    assert movement(7, samples).cpu_ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample(0.0, (), 0.0, 0)],
        [ProcessSample(0.0, None, None), ProcessSample(1.0, None, None)],
    ],
)
def test_one_look_says_nothing_about_movement(samples: list[ProcessSample]) -> None:
    assert movement(7, samples) is None


def test_a_failed_dump_in_between_does_not_count_as_movement() -> None:
    samples = [sample(t, ("wait (a.py:3)",), 0.0, 0) for t in (0.0, 1.0, 2.0)]
    samples[1] = samples[1]._replace(stacks=None)

    assert movement(7, samples).same_frames


RETRIES = "retry_download (polls.py:51)"


def looks(states: str, *, frames: str = RETRIES, cpu: float = 0.03) -> list[ProcessSample]:
    """One sample a letter: R is awake, S sleeps in a timer, F waits for a lock; it wakes up twice between two of them."""
    found = []
    for number, letter in enumerate(states):
        wchan = {"S": "hrtimer_nanosleep", "F": "futex_wait_queue"}.get(letter, "0")
        state = "R" if letter == "R" else "S"
        main = ThreadState(tid=7, state=state, wchan=wchan, cpu_seconds=cpu * 0.2 * number, voluntary_switches=2 * number)  # fmt: skip
        at = ProcessState(pid=7, state=state, threads=(main, ThreadState(tid=8, state="S")))
        dumped = (stack(frames.format(number), tid=7),)
        found.append(ProcessSample(0.2 * number, at, dumped))
    return found


def class_of(samples: list[ProcessSample]) -> str:
    process = ProcessCapture(
        pid=7, state=usual_state(7, samples), stacks=samples[0].stacks or (), movement=movement(7, samples)
    )  # fmt: skip
    return classify(RankCapture(identity=RankIdentity(rank=2, world_size=4, pid=7, start_ticks=1), process=process)).name  # fmt: skip


@pytest.mark.parametrize("states", ["SSSSSSSS", "RSSSSSSS", "RSRSSSFS"])
def test_who_looks_again_now_and_then_polls_also_where_the_first_look_finds_it_awake(states: str) -> None:  # fmt: skip
    """On a crowded machine it waits for a CPU each time it wakes up."""
    samples = looks(states)
    state = usual_state(7, samples)
    assert (state.state, state.main.state, state.main.wchan) == ("S", "S", "hrtimer_nanosleep")
    assert len(state.threads) == 2
    assert class_of(samples) == "poll"


@pytest.mark.parametrize("states", ["RRRRRRRR", "RSRSRRSR", "RRRRSSSS", "RSSSFFFF", "R"])
def test_who_is_awake_in_half_of_the_looks_or_waits_here_and_there_is_shown_as_first_seen(states: str) -> None:  # fmt: skip
    samples = looks(states)
    assert usual_state(7, samples) is samples[0].state


@pytest.mark.parametrize("samples", [looks("RRRRRSRS"), looks("RSSSSSSS", cpu=0.2)])
def test_who_computes_for_all_its_sleeps_is_busy(samples: list[ProcessSample]) -> None:
    """Starved by others, or with as much CPU time as it asked for."""
    assert class_of(samples) in ("busy", "native_code")


def test_who_was_seen_in_changing_places_is_shown_as_first_seen() -> None:
    samples = looks("RSSSSSSS", frames="step (train.py:{})")
    assert usual_state(7, samples) is samples[0].state


def test_a_process_that_is_gone_has_no_state() -> None:
    assert usual_state(7, [ProcessSample(0.0, None, None)]) is None
