"""Frozen or slow: what several samples of one process say."""

import pytest

from mldebug.capture.movement import ProcessSample, movement
from mldebug.core.model import Io, ProcessState, ThreadState
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
