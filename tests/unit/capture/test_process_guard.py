"""After a killed dump the patient is looked after, and nobody else is touched."""

import signal

import pytest

from mldebug.core.model import ProcessState
from mldebug_agents.capture.stacks.native import STOP_BIT, harmed, restore

FINE = ProcessState(pid=9, state="S", start_ticks=5)
STOPPED = ProcessState(pid=9, state="T", start_ticks=5)
PENDING = ProcessState(pid=9, state="D", start_ticks=5, pending_signals=STOP_BIT)
TRACED = ProcessState(pid=9, state="t", start_ticks=5, tracer_pid=77)


@pytest.mark.parametrize("after", [STOPPED, PENDING, TRACED])
def test_what_we_left_behind_is_undone_and_said(after: ProcessState) -> None:
    sent: list[tuple[int, int]] = []
    gap = restore(FINE, after, send=lambda pid, number: sent.append((pid, number)))

    assert sent == [(9, signal.SIGCONT)]
    assert "SIGCONT was sent" in gap.reason


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FINE, FINE),
        (STOPPED, STOPPED),  # it was stopped by its owner: not ours to resume
        (PENDING, PENDING),
        (FINE, None),
        (None, STOPPED),
        (FINE, ProcessState(pid=9, state="T", start_ticks=6)),  # another process with the same pid
    ],
)
def test_what_is_not_our_doing_is_left_alone(
    before: ProcessState | None, after: ProcessState | None
) -> None:
    sent: list[object] = []

    assert restore(before, after, send=lambda *a: sent.append(a)) is None
    assert sent == []
    assert not harmed(before, after)
