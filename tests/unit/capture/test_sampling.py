"""What a capture does about a process that somebody else holds just then."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mldebug.core.model import ProcessState
from mldebug_agents.capture.process_captures import RELEASES, CaptureTarget, Sampling
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
