"""The history of training figures in the agent: bounded, kept over restarts, and put aside where it cannot be used."""

import json
import math
import time
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.scalars.alerts import training_alerts
from mldebug.goodput.scalars.history import MOST_ROWS, HistoryTable, RunHistory
from mldebug.goodput.scalars.stored_training import FUTURE
from mldebug.jobs.heartbeat import Heartbeat
from mldebug.jobs.logs.figure_sources import OTHER_LOG
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.decision import StallWatch
from mldebug.stall.log_progress import LogProgress
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook
from mldebug.status.snapshot import RunState, Snapshot, encode
from mldebug_agents.agent.job_defects import JobDefects
from mldebug_agents.watch import scalar_monitor
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.scalar_monitor import ASIDE, MEMO, ScalarMonitor
from shared.goodput.memory_store import MemoryStore

BEGAN = 1_795_240_000.0
DAY = 86_400.0


class Node:
    """A node with runs, whose clock is turned by hand."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.now = 100.0
        self.set_by = 0.0  # seconds by which the wall clock was set
        self.store = store or MemoryStore()
        self.runs: dict[str, Run] = {}
        self.begin_agent()

    def begin_agent(self) -> None:
        self.monitor = ScalarMonitor(
            self.store, lambda: BEGAN + self.now + self.set_by, lambda: self.now
        )

    def look(
        self,
        step: int,
        loss: float,
        id: str = "run1",
        *,
        uid: int = 1000,
        attempt: int = 0,
        **figures: float,
    ) -> None:
        self.now += 5.0
        job = Job(id=id, name="train.py", launcher="torchrun", uid=uid, attempt=attempt, ranks=(RankIdentity(rank=0, pid=7, world_size=1, script="train.py"),))  # fmt: skip
        run = self.runs.setdefault(id, Run(job, StallWatch(StallSettings())))
        point = LogRecord(step=step, loss=loss, scalars=figures, format="generic")
        look = RunLook(at=self.now, run=id, started=True)
        run.update(JobLook(job=job, look=look, step=step, loss=loss, scalars=figures, points=(point,), step_format="generic"))  # fmt: skip
        self.tick()

    def hook(self, step: int, loss: float, looks: int = 1) -> None:
        """A run without a log, whose hook tells this in so many looks."""
        beats = {0: Heartbeat(written_at=self.now, step=step, scalars={"loss": loss})}
        for _ in range(looks):
            self.now += 5.0
            job = Job(id="run1", name="train.py", launcher="torchrun", uid=1000, ranks=(RankIdentity(rank=0, pid=7, world_size=1),))  # fmt: skip
            run = self.runs.setdefault("run1", Run(job, StallWatch(StallSettings())))
            run.update(JobLook(job=job, look=RunLook(at=self.now, run="run1", started=True), step=step, loss=loss, scalars={"loss": loss}, beats=beats))  # fmt: skip
            self.tick()

    def tick(self, *, enabled: bool = True, age: float = 7 * DAY) -> None:
        self.monitor.tick(self.runs, enabled=enabled, age=age)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tick()

    @property
    def shown(self) -> Snapshot:
        runs = tuple(RunState(id=id, name="train.py", launcher="torchrun") for id in self.runs)
        return self.monitor.show(Snapshot(node="n", at=BEGAN + self.now, started_at=0, runs=runs))

    @property
    def history(self) -> RunHistory:
        (found,) = self.shown.histories
        return found


def test_figures_of_a_run_become_series() -> None:
    node = Node()
    for step in range(40):
        node.look(step, 3.0 - step / 100, grad_norm=1.5, secret=8.0)
    history = node.history
    assert (history.run, history.name, history.uid, history.script) == ("run1", "train.py", 1000, "train.py")  # fmt: skip
    assert set(history.columns) == {"loss", "grad_norm"}
    assert len(history.times) == 20  # one for each ten seconds
    assert history.columns["loss"][-1] == pytest.approx(2.61)
    assert list(history.times) == sorted(history.times)


def test_figures_of_one_run_that_we_cannot_judge_leave_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loss of 1e200 once ended the agent."""
    node, real, defects = Node(), scalar_monitor.points_of, JobDefects()

    def broken(run: Run, *rest: Any) -> Any:
        if run.job.id == "bad":
            raise OverflowError("math range error")
        return real(run, *rest)

    monkeypatch.setattr(scalar_monitor, "points_of", broken)
    monkeypatch.setattr(node, "tick", lambda: node.monitor.tick(node.runs, defects.catching, enabled=True, age=DAY))  # fmt: skip
    for step in range(4):
        node.look(step, 1.0, "bad")
        node.look(step, 2.0, "good")
    assert [one.run for one in node.shown.histories] == ["good"]
    assert [one.what for one in defects.gaps] == ["run bad"]


def test_a_look_without_anything_new_adds_nothing() -> None:
    node = Node()
    node.look(1, 2.0)
    for _ in range(9):
        node.now += 5
        node.tick()
    assert len(node.history.times) == 1


def test_a_history_survives_a_restart_of_the_agent_with_its_events() -> None:
    node = Node()
    for step in range(300):
        node.look(step, math.nan if step >= 280 else 2.0)
    node.wait(60)
    before = node.history
    node.begin_agent()
    assert node.monitor.show(Snapshot(node="n", at=0, started_at=0)).histories == ()
    node.look(300, math.nan)
    after = node.history
    assert after.times[: len(before.times)] == before.times
    assert [(str(one.kind), one.step, one.ended) for one in after.events] == [("loss_not_finite", 280, None)]  # fmt: skip
    assert after.counts == {"loss_not_finite": 1}


def test_nothing_is_taken_before_what_was_stored_is_read() -> None:
    node = Node(MemoryStore(opened=False))
    node.look(1, 2.0)
    assert node.shown.histories == ()


def test_a_table_is_bounded_and_keeps_the_beginning_and_a_fine_end() -> None:
    table = HistoryTable()
    for n in range(60_000):  # a week
        table.add(BEGAN + 10.0 * n, n, {"loss": float(n), "made_up": 1.0})
        assert len(table.times) <= MOST_ROWS
    assert table.times[0] == BEGAN
    gaps = [b - a for a, b in pairwise(table.times[:-200])]
    assert max(gaps) < 12_000  # of a week
    assert table.times[-1] - table.times[-100] == pytest.approx(990)
    assert set(table.columns) == {"loss"}
    assert [int(value or 0) for value in table.columns["loss"]] == table.steps
    assert table.problem() == ""


def test_all_histories_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalar_monitor, "MOST_VALUES", 3000)
    monkeypatch.setattr(scalar_monitor, "MOST_LIVING", 4)
    node = Node()
    for step in range(600):
        for number in range(6):
            node.look(step, 2.0, f"run{number}", uid=1000 if number else 1001)
    node.wait(5)
    histories = node.shown.histories
    assert len(histories) == 4
    assert "run0" in {one.run for one in histories}  # the other user's only one
    assert sum(len(one.times) * (2 + len(one.columns)) for one in histories) <= 3000
    assert len(node.store.memos(MEMO)) <= 4
    (gap,) = node.shown.gaps
    assert "2 more live" in gap.reason
    for number in (4, 5):
        del node.runs[f"run{number}"]
    node.wait(5)
    assert not [one for one in node.shown.gaps if "more live" in one.reason], "they live no more"


def test_of_too_many_runs_that_live_some_have_a_history_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest of the user with most have none, rather than each by turns one that begins anew; when others end, they get one."""
    monkeypatch.setattr(scalar_monitor, "MOST_LIVING", 3)
    node = Node()
    for step in range(150):
        for number in range(5):
            node.look(step, math.nan if step == 140 else 2.0, f"run{number}")
    histories = {one.run: one for one in node.shown.histories}
    assert sorted(histories) == ["run0", "run1", "run2"]
    assert all(one.counts == {"loss_not_finite": 1} for one in histories.values())
    node.look(1, 2.0, "other", uid=1001)
    node.wait(5)
    assert sorted(one.run for one in node.shown.histories) == ["other", "run0", "run1"]
    del node.runs["run0"], node.runs["run1"]
    node.wait(120)
    node.look(150, 2.0, "run4")
    assert "run4" in {one.run for one in node.shown.histories}
    assert node.shown.gaps == ()


def test_runs_without_a_history_are_counted_while_they_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Short runs beside as many long ones as have a history: each was remembered for as long as the long ones ran."""
    monkeypatch.setattr(scalar_monitor, "MOST_LIVING", 3)
    node = Node()
    for number in range(8):
        for long in range(3):
            node.look(number, 2.0, f"long{long}")
        node.look(number, 2.0, f"short{number}")
        node.wait(5)
        (gap,) = node.shown.gaps
        assert "1 more live" in gap.reason
        del node.runs[f"short{number}"]


def test_more_than_64_runs_that_live_have_their_history() -> None:
    node = Node()
    for step in range(3):
        for number in range(80):
            node.look(step, 2.0, f"run{number}")
    assert len(node.shown.histories) == 80


def test_a_run_that_is_over_stays_for_a_while() -> None:
    node = Node()
    for step in range(300):
        node.look(step, math.nan if step >= 280 else 2.0)
    node.runs.clear()
    node.wait(120)
    assert node.history.events[0].ended is not None
    assert len(node.history.times) <= 120
    node.begin_agent()
    node.wait(6 * DAY)
    assert node.history.run == "run1"
    node.wait(2 * DAY)
    assert node.shown.histories == ()
    assert node.store.memos(MEMO) == ()


def test_nan_lasts_on_when_a_run_was_not_looked_at_or_not_found_for_a_while() -> None:
    """A node with many runs, or a search that failed: nobody is told for good that it is over."""
    node = Node()
    for step in range(300):
        node.look(step, math.nan if step >= 280 else 2.0)
    node.wait(120)
    assert node.history.events[0].ended is None
    node.runs.clear()
    node.wait(120)
    assert node.history.events[0].ended is not None
    node.look(300, math.nan)
    assert [one.ended for one in node.history.events] == [None]


def test_a_loss_that_the_hook_tells_is_judged_once_however_often_it_is_read() -> None:
    """A step of minutes, a run that hangs, and one that tells its loss every 100 steps."""
    node = Node()
    for step in range(200):
        node.hook(step, 2.0 + step % 7 / 100)
    node.hook(200, 9.0, looks=100)
    for step in range(201, 300):
        node.hook(step, 9.0)
    node.hook(300, 2.0)
    assert node.history.events == ()
    node.hook(301, math.nan)
    assert [str(one.kind) for one in node.history.events] == ["loss_not_finite"]


@pytest.mark.parametrize("seconds", [-DAY, DAY, -40.0])
def test_a_clock_that_is_set_ends_nothing_and_loses_no_row(seconds: float) -> None:
    node = Node()
    for step in range(300):
        node.look(step, math.nan if step >= 280 else 2.0)
    rows = len(node.history.times)
    node.set_by = seconds
    node.now += 5
    node.tick()
    assert node.history.events[0].ended is None
    for step in range(300, 400):
        node.look(step, math.nan)
    history = node.history
    assert history.events[0].ended is None
    assert len(history.times) >= rows + 48
    assert list(history.times) == sorted(history.times)
    assert history.times[-1] <= BEGAN + node.now + seconds
    node.wait(61)
    node.begin_agent()
    node.tick()
    assert node.history.events == history.events
    assert node.shown.gaps == ()


def test_switched_off_it_forgets() -> None:
    node = Node()
    node.look(1, 2.0)
    node.wait(61)
    assert node.store.memos(MEMO)
    node.tick(enabled=False)
    assert node.shown.histories == ()
    assert node.store.memos(MEMO) == ()


def stored() -> dict[str, object]:
    node = Node()
    for step in range(50):
        node.look(step, 2.0)
    node.wait(61)
    (name,) = node.store.memos(MEMO)
    found: dict[str, object] = json.loads(node.store.memo(name))
    return found


def broken() -> dict[str, tuple[bytes, str]]:
    whole = stored()
    table = whole["table"]
    assert isinstance(table, dict)

    def with_table(**fields: object) -> bytes:
        return msgspec.json.encode(whole | {"table": table | fields})

    data = msgspec.json.encode(whole)
    return {
        "cut off": (data[: len(data) // 2], "cannot be read"),
        "garbage": (b"\x00\xff\xfe not JSON", "cannot be read"),
        "another type": (b"[1, 2]", "cannot be read"),
        "a later version": (msgspec.json.encode(whole | {"version": 2}), "is of version 2"),
        "columns of other lengths": (with_table(steps=[1]), "different lengths"),
        "times that fall": (with_table(times=table["times"][::-1]), "do not rise"),
        "made-up figures": (with_table(columns={"x": [1.0] * len(table["times"])}), "other figures"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", broken())
def test_a_stored_history_that_cannot_be_used_is_put_aside_and_reported(kind: str) -> None:
    data, why = broken()[kind]
    node = Node(MemoryStore(values={f"{MEMO}abc": data}))
    node.now += 1000
    node.tick()
    (gap,) = node.shown.gaps
    assert why in gap.reason
    assert node.store.memos(MEMO) == ()
    assert ASIDE in node.store.values
    node.look(1, 2.0)  # and a new one begins
    assert node.history.columns == {"loss": (2.0,)}


@pytest.mark.parametrize("seconds", [400.0, 3 * DAY])
def test_a_clock_that_was_set_back_before_a_restart_erases_nothing(seconds: float) -> None:
    """Of a run that lives and of one that is over; what is stored is from the future then."""
    node = Node()
    for step in range(200):
        node.look(step, math.nan if 150 <= step < 160 else 2.0)
        node.look(step, 2.0, "gone")
    del node.runs["gone"]
    node.wait(200)
    before = {one.run: one for one in node.shown.histories}
    node.set_by -= seconds
    node.begin_agent()
    node.tick()
    after = {one.run: one for one in node.shown.histories}
    assert after.keys() == before.keys() == {"run1", "gone"}
    assert node.shown.gaps == ()
    for run, one in after.items():
        assert [b - a for a, b in pairwise(one.times)] == pytest.approx([b - a for a, b in pairwise(before[run].times)])  # fmt: skip
        assert one.times[-1] <= BEGAN + node.now + node.set_by + FUTURE
        assert one.columns == before[run].columns
    (event,) = after["run1"].events
    assert after["run1"].times[0] < event.at < (event.ended or 0) < after["run1"].times[-1]
    node.look(200, 2.0)
    assert list(node.shown.histories[0].times) == sorted(node.shown.histories[0].times)


def test_a_whole_one_is_used() -> None:
    node = Node(MemoryStore(values={f"{MEMO}abc": msgspec.json.encode(stored())}))
    node.now += 1000
    node.tick()
    assert node.shown.gaps == ()
    assert node.history.run == "run1"


def test_the_next_run_of_a_job_knows_where_the_one_before_stood() -> None:
    """It is submitted again: another run, which goes on at an earlier step; one that begins anew is a training of its own."""
    for first, kinds in ((120, ["rollback"]), (1, [])):
        node = Node()
        for step in range(1, 200):
            node.look(step, 2.0 + step % 3 / 10)
        node.runs.clear()
        node.wait(120)
        for step in range(first, first + 30):
            node.look(step, 2.0 + step % 3 / 10, "run2")
        second = next(one for one in node.shown.histories if one.run == "run2")
        assert [str(one.kind) for one in second.events] == kinds


def test_events_are_alerts_while_they_last_and_for_a_while() -> None:
    node = Node()
    for step in range(200):
        node.look(step, math.nan if step >= 150 else 2.0, attempt=0 if step < 90 else 1)
    snapshot = node.shown
    (subject,) = training_alerts(snapshot.histories, ["run1"], snapshot.at)
    (alert,) = subject.alerts
    assert (alert.kind, alert.severity, alert.uid) == ("loss_not_finite", "warning", 1000)
    assert alert.sentence == "train.py: the loss became NaN at step 150"
    (gone,) = training_alerts(snapshot.histories, [], snapshot.at)
    assert gone.alerts == ()
    assert gone.is_over(alert.key)


def test_the_status_has_events_and_no_histories_in_its_json() -> None:
    node = Node()
    for step in range(200):
        node.look(step, math.nan if step >= 150 else 2.0)
    shown = json.loads(encode(node.shown))
    assert "histories" not in shown
    (run,) = shown["runs"]
    (event,) = run["training_events"]
    assert (event["kind"], event["step"]) == ("loss_not_finite", 150)


def test_records_between_two_looks_are_all_taken_from_one_log_of_several() -> None:
    progress = LogProgress()
    record = lambda step, loss: LogRecord(step=step, loss=loss, format="generic")
    progress.take((record(1, 3.0), record(2, math.nan), record(3, 2.9)), 10, 1.0, "a")
    progress.take((record(1, 3.1), record(2, 3.1)), 10, 1.0, "b")
    assert [(one.step, repr(one.loss)) for one in progress.take_points()] == [(1, "3.0"), (2, "nan"), (3, "2.9")]  # fmt: skip
    assert progress.take_points() == ()
    progress.take((record(4, 2.8),), 10, 2.0 + OTHER_LOG, "b")  # the other one has ended
    assert [one.step for one in progress.take_points()] == [4]
    progress.restart()
    progress.take((record(3, 2.7),), 10, 3.0 + OTHER_LOG, "a")
    assert [one.step for one in progress.take_points()] == [3]


def test_a_look_costs_little() -> None:
    """CPU time of the main loop's thread, with eight runs that log a step a second."""
    node = Node()
    begin = time.thread_time()
    for step in range(400):
        for number in range(8):
            node.look(step, 2.0 + step % 7 / 50, f"run{number}", tokens_per_second=1e4 + step % 5, learning_rate=1e-4)  # fmt: skip
        node.monitor.show(Snapshot(node="n", at=0, started_at=0))
    each = (time.thread_time() - begin) / 3200
    assert each < 0.002
