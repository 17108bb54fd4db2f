"""What a capture does about a process that somebody else holds just then."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mldebug.core.model import ProcessState
from mldebug_agents.capture.process_captures import LATE, RELEASES, CaptureTarget, Sampling
from mldebug_agents.capture.stacks.pyspy import Dump

HELD = ProcessState(pid=9, state="t", tracer_pid=77, tracer_name="py-spy")
FREE = ProcessState(pid=9, state="S")


class Moments:
    """A host where each look finds the next state, and the last one from then on."""

    def __init__(self, *states: ProcessState) -> None:
        self.states = list(states)

    def process_state(self, pid: int, **_: bool) -> ProcessState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


class NoDumps:
    """A py-spy that sees nobody."""

    def dump(self, pid: int, *, timeout: float) -> Dump:
        return Dump(failure="not asked")


@pytest.mark.parametrize(
    ("host", "state", "naps"),
    [
        (Moments(FREE), FREE, 0),
        (Moments(HELD, HELD, FREE), FREE, 2),
        (Moments(HELD), HELD, RELEASES),  # gdb, or a profiler that hangs: not for ever
    ],
)
def test_a_process_in_the_hands_of_a_tracer_is_looked_at_again(
    host: Any, state: ProcessState, naps: int
) -> None:
    slept: list[float] = []
    target = CaptureTarget(9, 0, "rank", "", True)
    sampling = Sampling(host, NoDumps(), [target, target], lambda: 30.0, slept.append)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        sampling.look(pool)
    assert sampling.states[9] == state
    assert len(slept) == naps


class Silent:
    """A py-spy that needs all the time that it is given, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.questions: list[int] = []

    def dump(self, pid: int, *, timeout: float) -> Dump:
        self.now += timeout
        self.questions.append(pid)
        return Dump(failure="no answer in 5 s")


def test_processes_that_let_py_spy_wait_take_no_longer_than_the_capture_has() -> None:
    """Of a thousand ranks with stacks without an end it took 40 minutes."""
    pyspy, targets = Silent(), [CaptureTarget(pid, pid, "rank", "", True) for pid in range(1000)]
    sampling = Sampling(
        *(Moments(FREE), pyspy, targets, lambda: 30.0 - pyspy.now, lambda _: None)  # type: ignore[arg-type]
    )
    with ThreadPoolExecutor(1) as pool:
        sampling.look(pool)
        sampling.watch(pool, 2.0)
    assert pyspy.now == pytest.approx(30.0)
    assert len(pyspy.questions) == 6
    assert sampling.dumps[999].failure == LATE
