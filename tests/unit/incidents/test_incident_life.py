"""An incident whose capture does not come is told all the same; a capture that fails or is refused is tried again."""

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.config.schema import AgentConfig, Config, StallConfig
from mldebug.core.errors import EvidenceError
from mldebug.core.model import NodeCapture, Verdict
from mldebug.core.report_model import GoodputView, Report
from mldebug.incidents.incident import Incident
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import report_lines
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Stage, StallDecision
from mldebug_agents.agent import wiring
from mldebug_agents.agent.capture_queue import CaptureQueue, QueuedCapture
from mldebug_agents.agent.node_tools import CurrentConfig, open_tools
from mldebug_agents.agent.wiring import build_loop
from mldebug_agents.incidents import manager as module
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.state.run_row import RunRow, processes, renamed
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.service.sd_notify import SystemdNotifier
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.runs import Run
from shared.incidents import samples

SENTENCE = "no step for 62 s (usual gap 1.1 s); rank 3 sleeps in slow_data_loader"
BLAMED = StallDecision(
    stage=Stage.BLAMED, sentence=SENTENCE, open=True, capture=True, key="j/0/7", timeout=30.0
)


class Books:
    """Stands in for the ledger: what was kept, and each report as it was written."""

    def __init__(self, *found: tuple[str, Incident]) -> None:
        self.rows = {name: RunRow(memory=watch().memory(), incident=value) for name, value in found}
        self.kept: list[Incident | None] = []
        self.reports: list[Report] = []
        self.archive = self

    def keep(self, job_id: str, memory: object, incident: Incident | None) -> None:
        self.kept.append(incident)

    def earlier_incident(self, job_id: str) -> Incident | None:
        return self.rows[job_id].incident if job_id in self.rows else None

    def found(self) -> dict[str, RunRow]:
        return dict(self.rows)

    def forget(self, job_id: str) -> None:
        del self.rows[job_id]

    def forget_others(self, present: object) -> None:
        """There are none."""

    def report(self, report_id: str, work: Callable[[], None], *_: object) -> None:
        work()

    def save(self, report: Report, html: str, evidence: object, owner_uid: int = 0) -> None:
        assert html.rstrip().endswith("</html>")
        self.reports.append(report)

    def prune(self) -> None:
        """Nothing is too old."""


USED = GoodputView(
    attempt=0,
    outcome="",
    gpu_seconds={"productive": 5400.0, "stall": 1800.0},
    productive_ratio=0.75,
    sentence="75 % productive; 25 % stalls",
    stragglers=(),
    job_attempts=2,
    job_restarts=1,
    job_gpu_seconds={"productive": 5400.0},
    job_sentence="70 % productive",
    advice="",
)


def watch() -> StallWatch:
    return StallWatch(StallSettings())


def evidence() -> NodeCapture:
    return samples.sleeping().captures[0]


def opened() -> tuple[Books, IncidentManager, Run]:
    """An incident whose capture is under way."""
    books = Books()
    incidents = IncidentManager(books)  # type: ignore[arg-type]
    run = Run(evidence().job, watch())
    incidents.open(run, BLAMED)
    assert run.incident is not None
    return books, incidents, run


@pytest.mark.parametrize("state", ["ended", "recovered"])
def test_the_report_of_an_end_says_where_the_gpu_time_went(state: Any) -> None:
    """A stall that the job survives is no end."""
    books = Books()
    incidents = IncidentManager(books, goodput=lambda job: USED if job.id == run.job.id else None)  # type: ignore[arg-type]
    run = Run(evidence().job, watch())
    incidents.open(run, BLAMED)
    incidents.close(run, state, "all ranks are gone")
    report = books.reports[-1]
    assert report.goodput == (USED if state == "ended" else None)
    words = "2.00 GPU hours of attempt 0: 75 % productive; 25 % stalls"
    assert (words in "\n".join(report_lines(report))) == (state == "ended")
    assert (words in render_html(report)) == (state == "ended")


@pytest.mark.parametrize("state", ["ended", "recovered"])
def test_an_incident_that_closes_before_its_capture_is_told_and_counted(state: Any) -> None:
    books, incidents, run = opened()
    assert run.incident is not None
    result = run.incident.id
    incidents.close(run, state, "all ranks are gone")
    (report,) = books.reports
    assert (report.id, report.state) == (result, state)
    assert report.diagnosis.verdict is Verdict.UNKNOWN
    assert report.diagnosis.culprits == ()
    assert report.diagnosis.summary.startswith("No step for 62 s (usual gap 1.1 s); rank 3 sleeps")
    before = "the job ended" if state == "ended" else "the job moved again"
    assert report.gaps[0].reason == f"the capture did not come back before {before}"
    assert report.diagnosis.evidence[0].startswith("the stall lasted ")
    assert [one.rank for one in report.ranks] == list(range(8))
    assert dict(incidents.counts) == {"stall/unknown": 1}
    assert incidents.last_report == {"stall/unknown": result}
    assert books.kept[-1] is None
    assert "did not come back" in " ".join(report_lines(report, 80))
    assert "did not come back" in render_html(report)


def test_one_that_was_captured_is_counted_once() -> None:
    books, incidents, run = opened()
    incidents.captured(run, evidence())
    incidents.close(run, "ended", "all ranks are gone")
    assert dict(incidents.counts) == {"stall/rank_waiting": 1}
    assert books.reports[-1].state == "ended"
    assert books.reports[-1].diagnosis.culprits[0].rank == 3


@pytest.mark.parametrize("captured", [True, False])
def test_one_that_was_held_back_for_others_is_counted_when_its_job_ends(captured: bool) -> None:
    """The coordinator had no time to ask for it; with its capture, or without one."""
    books = Books()
    incidents = IncidentManager(books)  # type: ignore[arg-type]
    run = Run(evidence().job, watch())
    incidents.open(run, BLAMED, hold=True)
    run.capture = evidence() if captured else None
    incidents.close(run, "ended", "all ranks are gone")
    verdict = "rank_waiting" if captured else "unknown"
    assert dict(incidents.counts) == {f"stall/{verdict}": 1}
    assert [(one.state, str(one.diagnosis.verdict)) for one in books.reports] == [
        ("ended", verdict)
    ]


def test_an_agent_that_was_killed_before_the_capture_leaves_an_incident_that_the_next_one_tells() -> (
    None
):
    books, _, run = opened()
    stored = msgspec.json.decode(msgspec.json.encode(books.kept[-1]), type=Incident)
    again = Books((run.job.id, stored))
    later = IncidentManager(again)  # type: ignore[arg-type]
    later.close_orphans(set())
    (report,) = again.reports
    assert (report.id, report.state) == (stored.id, "ended")
    assert report.job.name == run.job.name
    assert dict(later.counts) == {"stall/unknown": 1}
    assert again.rows == {}


def test_an_incident_of_an_earlier_version_knows_no_job_and_is_told_too() -> None:
    bare = Incident(id="20261121T055041Z-j", key="j/0/1", job_id="j", detected_at=1e9)
    books = Books(("j", bare))
    IncidentManager(books).close_orphans(set())  # type: ignore[arg-type]
    (report,) = books.reports
    assert report.ranks == ()
    assert report.job.id == "j"


def test_a_run_is_known_again_by_an_incident_without_capture() -> None:
    books, _, run = opened()
    incident = books.kept[-1]
    assert incident is not None
    assert (run.job.ranks[0].pid, run.job.ranks[0].start_ticks) in processes(incident, None)
    other = msgspec.structs.replace(run.job, id="other")
    again = renamed(RunRow(memory=watch().memory(), incident=incident), other).incident
    assert again is not None
    assert again.job is not None
    assert (again.job_id, again.job.id) == ("other", "other")


# --- orders ----------------------------------------------------------------------------------------


class Bench:
    """A worker that takes as many orders as it has room."""

    def __init__(self, room: int = 9) -> None:
        self.room = room
        self.orders: list[QueuedCapture] = []

    def put(self, order: QueuedCapture) -> bool:
        if len(self.orders) >= self.room:
            return False
        self.orders.append(order)
        return True


def with_queue(room: int = 9) -> tuple[Books, IncidentManager, Run, CaptureQueue, Bench]:
    books, incidents, run = opened()
    bench = Bench(room)
    orders = CaptureQueue(bench.put, incidents)
    orders.ask(run, QueuedCapture(run.job, Discovery(), BLAMED))
    return books, incidents, run, orders, bench


def test_a_capture_that_fails_is_tried_once_more(caplog: pytest.LogCaptureFixture) -> None:
    books, incidents, run, orders, bench = with_queue()
    with caplog.at_level(logging.WARNING):
        orders.failed(run, bench.orders[-1], EvidenceError("no\x1b[31m py-spy"))
    assert "capture failed: EvidenceError: no" in caplog.text
    assert [one.again for one in bench.orders] == [False, True]
    assert bench.orders[-1].decision is BLAMED
    assert books.reports == []
    incidents.captured(run, evidence())
    assert books.reports[-1].diagnosis.culprits[0].rank == 3
    assert [one.what for one in books.reports[-1].gaps] == ["native stack"]


def test_one_that_fails_twice_is_a_gap_and_the_incident_is_told_without_it() -> None:
    books, incidents, run, orders, bench = with_queue()
    for _ in range(2):
        orders.failed(run, bench.orders[-1], OSError("no room"))
    assert len(bench.orders) == 2
    (report,) = books.reports
    assert report.state == "open"
    assert report.gaps[0].reason == "it failed twice: OSError: no room"
    assert "no capture: it failed twice: OSError: no room" in report.timeline[-1].what
    incidents.captured(run, evidence())  # the one of half a minute later
    incidents.close(run, "ended", "all ranks are gone")
    assert dict(incidents.counts) == {"stall/unknown": 1}
    last = books.reports[-1]
    assert last.diagnosis.culprits[0].rank == 3
    assert "it failed twice: OSError: no room" in [one.reason for one in last.gaps]


def test_a_capture_that_hangs_does_not_keep_the_report_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    books, incidents, run, orders, _ = with_queue()
    orders.look(run, Discovery())
    assert books.reports == []
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    for _ in range(3):
        orders.look(run, Discovery())
    (report,) = books.reports
    assert report.gaps[0].reason == "the capture has not come back yet"
    incidents.close(run, "ended", "all ranks are gone")
    assert dict(incidents.counts) == {"stall/unknown": 1}


def test_an_order_that_is_refused_is_a_gap_and_tried_at_the_next_look() -> None:
    books, incidents, run, orders, bench = with_queue(room=0)
    for _ in range(3):
        orders.look(run, Discovery())
    assert run.incident is not None
    assert len(run.incident.gaps) == 1
    bench.room = 1
    now = Discovery(gaps=evidence().gaps)
    orders.look(run, now)
    assert bench.orders == [QueuedCapture(run.job, now, BLAMED)]
    orders.look(run, now)
    assert len(bench.orders) == 1
    incidents.captured(run, evidence())
    assert "put off to the next look" in books.reports[-1].gaps[-1].reason


def test_what_failed_before_the_incident_is_told_in_it() -> None:
    books = Books()
    incidents = IncidentManager(books)  # type: ignore[arg-type]
    run, bench = Run(evidence().job, watch()), Bench(room=0)
    CaptureQueue(bench.put, incidents).ask(run, QueuedCapture(run.job, Discovery()))
    assert books.kept == []
    incidents.open(run, BLAMED)
    incidents.close(run, "ended", "all ranks are gone")
    assert "put off to the next look" in books.reports[-1].gaps[0].reason


def test_a_run_that_is_gone_is_not_captured_again() -> None:
    _, _, run, orders, bench = with_queue()
    orders.failed(None, bench.orders[-1], OSError("no such process"))
    assert len(bench.orders) == 1
    orders.forget(run)
    orders.look(run, Discovery())
    assert len(bench.orders) == 1


def test_the_node_tries_a_capture_that_raises_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[QueuedCapture] = []

    def fails(_: object, order: QueuedCapture) -> None:
        tries.append(order)
        raise OSError("no room")

    monkeypatch.setattr(wiring, "take", fails)
    config = Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""), stall=StallConfig())
    with open_tools(config) as tools:
        ledger = StateStore(config.agent.state_dir, tools.context.spawner, retry=0.01)
        ledger.start(5)
        node = build_loop(CurrentConfig(config), tools, ledger, lambda _: None, SystemdNotifier({}))
        run = node.runs[evidence().job.id] = Run(evidence().job, watch())
        node._decide(run, BLAMED)
        for _ in range(2):
            result = node._inbox.get(timeout=60)
            assert result is not None
            node._handle(result)
        ledger.close(5)
    assert [one.again for one in tries] == [False, True]
    assert run.incident is not None
    assert [one.reason for one in run.incident.gaps] == ["it failed twice: OSError: no room"]
    assert run.judgement is not None


@pytest.mark.parametrize(("attempt", "awaits"), [(1, True), (0, False)])
def test_a_late_capture_of_an_earlier_attempt_makes_nobody_wait_for_an_answer(
    tmp_path: Path, attempt: int, awaits: bool
) -> None:
    config = Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""), stall=StallConfig())
    with open_tools(config) as tools:
        ledger = StateStore(config.agent.state_dir, tools.context.spawner)
        node = build_loop(CurrentConfig(config), tools, ledger, lambda _: None, SystemdNotifier({}))
        now, then = (msgspec.structs.replace(evidence().job, attempt=it) for it in (1, attempt))
        run = node.runs[now.id] = Run(now, watch())
        node._captured(now.id, msgspec.structs.replace(evidence(), job=then, awaited=(0,)))
    assert run.watch.memory().awaits == awaits


def test_a_worker_says_that_it_takes_no_more_and_gives_an_error_back_with_its_order() -> None:
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    idle = Worker("none", print, inbox, 1.0, threads=0)
    taken = [idle.order(number) for number in range(70)]
    assert taken == [True] * 64 + [False] * 6
    worker = Worker("capture", lambda order: 1 // order, inbox, 1.0)
    assert worker.order(0)
    result = inbox.get(timeout=60)
    assert result is not None
    assert (result.worker, result.order, result.value) == ("capture", 0, None)
    assert isinstance(result.error, ZeroDivisionError)
    assert worker.state().success is False


def test_a_user_whose_orders_hang_keeps_nobody_else_s_out() -> None:
    """Three of four hands are his at most; whoever comes new is next."""
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    begun: queue.SimpleQueue[str] = queue.SimpleQueue()
    release = threading.Event()

    def work(order: str) -> None:
        begun.put(order)
        if order[0] == "a":
            assert release.wait(30)

    worker = Worker("members", work, inbox, 60.0, threads=4, owner_key=lambda order: order[0])
    assert all(worker.order(f"a{number}") for number in range(3))
    assert {begun.get(timeout=60) for _ in range(3)} == {"a0", "a1", "a2"}
    assert [worker.order(f"a{number}") for number in range(3, 68)] == [True] * 64 + [False]
    assert all(worker.order(f"b{number}") for number in range(5))
    assert [begun.get(timeout=60) for _ in range(5)] == ["b0", "b1", "b2", "b3", "b4"]
    assert worker.busy
    release.set()
    assert sorted(begun.get(timeout=60) for _ in range(64)) == sorted(f"a{n}" for n in range(3, 67))
