"""What removes old things does so only by a clock that was not set for a day."""

import os
from pathlib import Path

from mldebug.incidents.report_store import ReportStore
from mldebug_agents.state.messages import OpenState, PruneReports
from mldebug_agents.state.server import StateServer
from mldebug_agents.state.settled_clock import SETTLED, SettledClock
from unit.state.test_hostile_folder import named


class Clocks:
    """A wall clock and a steady one, turned by hand."""

    def __init__(self) -> None:
        self.steady, self.set_by = 100.0, 1.7e9

    def made(self) -> SettledClock:
        """A clock that looks at both."""
        return SettledClock(lambda: self.steady + self.set_by, lambda: self.steady)


def test_a_clock_settles_in_a_day_and_again_after_it_was_set() -> None:
    clocks = Clocks()
    clock = clocks.made()
    assert not clock.settled()
    clocks.steady += SETTLED
    assert clock.settled()
    for step in (30 * SETTLED, -400 * SETTLED, 61.0):
        clocks.set_by += step
        assert not clock.settled()
        clocks.steady += SETTLED - 1
        assert not clock.settled()
        clocks.steady += 1
        assert clock.settled()


def test_a_clock_that_is_only_slewed_stays_settled() -> None:
    clocks = Clocks()
    clock = clocks.made()
    for _ in range(48):
        clocks.steady += SETTLED / 24
        clocks.set_by += 20.0
        clock.settled()
    assert clock.settled()


def test_no_report_is_too_old_by_a_clock_that_was_just_set(tmp_path: Path) -> None:
    clocks = Clocks()
    server = StateServer(clocks.made())
    server.execute(OpenState(state_dir=str(tmp_path), pid=os.getpid(), listener=False))
    for day in (1, 2):  # years ago, by the clock of this machine
        ReportStore(tmp_path).save(named(f"2019010{day}T000000Z-one"), "", {})
    server.execute(PruneReports())
    assert len(ReportStore(tmp_path).list()) == 2
    clocks.steady += SETTLED
    server.execute(PruneReports())
    assert len(ReportStore(tmp_path).list()) == 1  # the newest stays
