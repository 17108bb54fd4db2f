"""A restart of the agent in the middle of something is no sign of life of the job, and a jump of the clock neither."""

import logging
from collections.abc import Callable

import msgspec
import pytest

from mldebug.core.report_model import Report
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Progress, ProgressKind, RankLook, Role, RunLook, Stage
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.incidents.report_writer import IncidentWriter
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.watch.runs import Run
from shared.incidents import samples

SETTINGS = StallSettings(timeout=10.0, interval=1.0)


def look(at: float, step: int, records: int, written: float) -> RunLook:
    """Two ranks, of which rank 1 sleeps; the log's last record is of `written`."""
    kinds = {ProgressKind.STEP: step, ProgressKind.RECORD: records}
    progress = [Progress(kind=kind, value=value, at=written) for kind, value in kinds.items()]
    progress.append(Progress(kind=ProgressKind.LOG_GROWTH, value=records * 10, at=written))
    ranks = (
        RankLook(rank=0, role=Role.WAITING, class_name="collective", frames_signature="w", state="S"),
        RankLook(rank=1, role=Role.INERT, class_name="sleep", frames_signature="s", state="S"),
    )  # fmt: skip
    return RunLook(at=at, run="job", ranks=ranks, progress=tuple(progress))


def stalled() -> StallWatch:
    """A watch that has opened an incident at step 20."""
    watch = StallWatch(SETTINGS)
    for at in range(21):
        watch.look(look(at, at, at, at))
    stages = [watch.look(look(at, 20, 20, 20)).stage for at in range(21, 34)]
    assert stages[-1] is Stage.BLAMED
    return watch


@pytest.mark.parametrize("records", [0, 1, 20, 500])
def test_an_agent_that_counts_anew_does_not_take_that_for_movement(records: int) -> None:
    again = StallWatch(SETTINGS, stalled().memory())
    for at in range(40, 60):
        decision = again.look(look(at, 20, records, 20.0))
        assert (decision.stage, decision.key) == (Stage.BLAMED, "job/0/20")
        assert not decision.open


def test_a_log_that_is_found_later_than_the_run_is_no_movement_either() -> None:
    again = StallWatch(SETTINGS, stalled().memory())
    silent = msgspec.structs.replace(look(40, 20, 1, 20.0), progress=())
    assert again.look(silent).stage is Stage.BLAMED
    assert again.look(look(41, 20, 1, 20.0)).stage is Stage.BLAMED


def test_what_moved_while_no_agent_watched_is_recovered() -> None:
    again = StallWatch(SETTINGS, stalled().memory())
    assert again.look(look(40, 21, 1, 39.0)).stage is Stage.RECOVERED


def test_other_settings_hold_at_once_and_the_rhythm_stays() -> None:
    watch = StallWatch(SETTINGS)
    for at in range(21):
        watch.look(look(at, at, at, at))
    watch.reload(StallSettings(timeout=100.0, interval=1.0))
    stages = {watch.look(look(at, 20, 20, 20)).stage for at in range(21, 60)}
    assert Stage.BLAMED not in stages
    watch.reload(SETTINGS)
    decision = watch.look(look(60, 20, 20, 20))
    assert decision.timeout == 10.0
    assert "usual gap 1 s" in decision.sentence


# --- the clock ---------------------------------------------------------------------------------------


class World:
    """Clocks that a test sets."""

    def __init__(self) -> None:
        self.steady = 1000.0
        self.wall = 1_795_240_000.0

    def clock(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.steady)

    def pass_time(self, seconds: float) -> None:
        self.steady += seconds
        self.wall += seconds


class Books:
    """Stands in for the ledger: remembers what was to be stored, and writes reports at once."""

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.reports: list[Report] = []
        self.archive = self

    def keep(self, job_id: str, memory: object, incident: object) -> None:
        self.kept.append(incident)

    def report(self, report_id: str, work: Callable[[], None], *_: object) -> None:
        work()

    def save(self, report: Report, html: str, evidence: object, owner_uid: int = 0) -> None:
        self.reports.append(report)

    def prune(self) -> None:
        """Nothing is too old."""


def a_run() -> Run:
    capture = samples.sleeping().captures[0]
    return Run(capture.job, StallWatch(SETTINGS))


@pytest.mark.parametrize("jump", [-86_400.0, -3600.0, 3600.0, 400 * 86_400.0])
def test_the_wall_clock_may_be_set_in_the_middle_of_an_incident(jump: float) -> None:
    world, books = World(), Books()
    clock = world.clock()
    incidents = IncidentManager(books, clock)  # type: ignore[arg-type]
    run, capture = a_run(), samples.sleeping().captures[0]
    watch = StallWatch(SETTINGS)
    for at in range(21):
        watch.look(look(world.steady - 40 + at, at, at, world.steady - 40 + at))
    for at in range(21, 40):
        decision = watch.look(look(world.steady - 40 + at, 20, 20, world.steady - 20))
        if decision.open:
            break
    assert decision.open
    incidents.open(run, decision)
    world.pass_time(5)
    incidents.captured(run, msgspec.structs.replace(capture, taken_at=world.wall))
    world.wall += jump
    world.pass_time(30)
    incidents.captured(run, msgspec.structs.replace(capture, taken_at=world.wall))
    world.pass_time(30)
    incidents.close(run, "recovered", "moves again")
    last = books.reports[-1]
    whens = [event.at for event in last.timeline]
    assert whens == sorted(whens)
    assert {one.id for one in books.reports} == {last.id}
    assert last.stalled_since is not None
    assert last.stalled_since <= last.detected_at <= last.reported_at
    assert last.reported_at.startswith("2026-11-21T")


def test_an_id_is_never_given_twice() -> None:
    world = World()
    writer = IncidentWriter(Books(), world.clock(), lambda *_: None, lambda _: None)  # type: ignore[arg-type]
    given = [writer.new_id(world.wall, name) for name in ("job", "job", "other", "job", "other")]
    assert len(set(given)) == len(given)


def test_the_new_time_counts_once_nobody_relies_on_the_old(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    clock = world.clock()
    world.wall += 0.01
    assert clock.settle() == 0.0
    world.wall += 3600
    assert clock.now() == pytest.approx(world.wall - 3600)
    with caplog.at_level(logging.WARNING):
        assert clock.settle() == pytest.approx(3600)
    assert clock.now() == pytest.approx(world.wall)
    assert "was set +3600 s" in caplog.text
