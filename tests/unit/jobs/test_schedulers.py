"""Asking schedulers: programs that are missing, hang, flood or speak otherwise; an API server that replays objects."""

import http.server
import json
import os
import queue
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.alerts.event_registry import EventRegistry
from mldebug.alerts.job_events import of_schedulers
from mldebug.alerts.model import EventState
from mldebug.alerts.node_events import together
from mldebug.config.schema import Config, ExpectedJob, JobsConfig, load_config
from mldebug.core.errors import ConfigError
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import NoOptions
from mldebug.core.yaml_reader import parse
from mldebug.jobs.schedulers.model import (
    JobStanding,
    Queue,
    QueueError,
    QueueJob,
    QueueNode,
    SchedulerState,
)
from mldebug.jobs.schedulers.status_lines import scheduler_lines
from mldebug.status.snapshot import Snapshot
from mldebug_agents.jobs.scheduler_monitor import PolledScheduler
from mldebug_agents.jobs.schedulers import kubernetes, slurm
from mldebug_agents.system.spawn import Completed, FakeSpawner, Spawner
from mldebug_agents.system.workers import Result
from mldebug_exporters.metrics import scheduler as scheduler_metrics
from shared.system.patience import PATIENCE

FIXTURES = Path(__file__).parents[2] / "fixtures/slurm"
LINE = "%s1|1|ada|RUNNING|2026-11-24T01:17:04|NONE|UNLIMITED|2026-11-24T01:17:02|all|a1|None|my träin\n"


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner() as one:
        yield one


def program(folder: Path, script: str) -> str:
    """The path of a shell script."""
    file = folder / "squeue"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def ask(spawner: Spawner, squeue: str, **more: Any) -> Queue:
    """One question for jobs."""
    return slurm.create(slurm.Options(squeue=squeue, **more)).ask(spawner, nodes=False)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 30", "timeout"),
        ("exec yes $(printf %01000d 7)", "too_large"),
        ("echo 'Befehl unbekannt'", "unreadable"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "failed"),
        ("kill -9 $$", "failed"),
        (f"cat {FIXTURES}/sinfo-22.05.json", "unreadable"),
    ],
)
def test_a_squeue_that_is_sick_is_named_and_holds_up_nothing(
    spawner: Spawner, tmp_path: Path, script: str, reason: str
) -> None:
    with pytest.raises(QueueError) as raised:
        ask(spawner, program(tmp_path, script), timeout=1.0 if "sleep" in script else 20.0)
    assert raised.value.reason == reason


def test_a_squeue_that_is_missing_is_said(spawner: Spawner) -> None:
    with pytest.raises(QueueError, match="could not be run") as raised:
        ask(spawner, "/no/such/squeue")
    assert raised.value.reason == "not_started"


def test_without_json_text_is_asked_for_and_remembered(spawner: Spawner, tmp_path: Path) -> None:
    text = 'mark=${3#--format=}; printf "' + LINE.replace("\n", r"\n") + '" "${mark%%%%A*}"'
    script = (
        f'echo "$*" >> {tmp_path}/asked; test "$2" = --json && exit 1\n{text.replace("%%%%", "%%")}'
    )
    one = slurm.create(slurm.Options(squeue=program(tmp_path, script)))
    for _ in range(2):
        answer = one.ask(spawner, nodes=False)
        assert [(job.id, job.name) for job in answer.jobs] == [("1", "my träin")]
        assert answer.by == "text"
    lines = (tmp_path / "asked").read_text().splitlines()
    assert ["--json" in line for line in lines] == [True, False, False]


def test_no_variable_of_the_user_changes_what_is_printed(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SLURM_CONF", "/there/slurm.conf")
    script = f"env > {tmp_path}/env; cat {FIXTURES}/squeue-22.05.json"
    assert len(ask(spawner, program(tmp_path, script)).jobs) == 6
    lines = (tmp_path / "env").read_text().splitlines()
    assert {"LC_ALL=C", "TZ=UTC", "SLURM_CONF=/there/slurm.conf"} <= set(lines)
    assert not [one for one in lines if one.startswith("SQUEUE_")]


def test_each_question_is_one_call_and_jobs_are_told_where_nodes_are_not() -> None:
    results = []

    def answer(argv: Sequence[str]) -> Completed:
        results.append(argv[0])
        if argv[0] == "sinfo":
            return Completed(returncode=1, stderr=b"no")
        return Completed(returncode=0, stdout=(FIXTURES / "squeue-22.05.json").read_bytes())

    one, starter = slurm.create(slurm.Options()), FakeSpawner(answer)
    first = one.ask(starter, nodes=True)  # type: ignore[arg-type]  # nothing is known yet
    assert (len(first.jobs), first.nodes, first.trouble, results) == (6, None, "", ["squeue"])
    reply = one.ask(starter, nodes=True)  # type: ignore[arg-type]
    assert (len(reply.jobs), reply.nodes) == (6, None)
    assert "exit code 1" in reply.trouble
    assert results == ["squeue", "sinfo", "sinfo"]  # the second: as text, in the first hour
    one.ask(starter, nodes=True)  # type: ignore[arg-type]
    assert results[3:] == ["squeue"]  # never twice without looking anew


@pytest.mark.parametrize(
    ("private", "uid", "jobs", "only_of"),
    [
        ("jobs,usage", 1, "", True),
        ("all", 1, "", True),
        ("none", 1, "", False),
        ("usage", 1, "", False),
        ("jobs", 0, "", False),  # root sees all
        ("jobs", 1, LINE, False),  # so does an operator: there is somebody else's
        (None, 1, "", False),
    ],
)
def test_jobs_that_slurm_hides_are_known_to_be_hidden(
    monkeypatch: pytest.MonkeyPatch, private: str | None, uid: int, jobs: str, only_of: bool
) -> None:
    results = []

    def answer(argv: Sequence[str]) -> Completed:
        results.append(argv[0])
        if argv[0] == "scontrol":
            config = f"PrioritySiteFactorPlugin= (null)\nPrivateData             = {private}\n"
            return Completed(returncode=1 if private is None else 0, stdout=config.encode())
        if "--json" in argv:
            return Completed(returncode=1)
        mark = argv[-1].removeprefix("--format=").partition("%A")[0]
        return Completed(returncode=0, stdout=(jobs.replace("%s", mark, 1)).encode())

    monkeypatch.setattr(slurm.os, "geteuid", lambda: uid)
    one, starter = slurm.create(slurm.Options()), FakeSpawner(answer)
    for _ in range(2):
        reply = one.ask(starter, nodes=False)  # type: ignore[arg-type]
        assert bool(reply.only_of) == only_of
    assert results.count("scontrol") <= 1


def test_what_slurm_hides_is_not_called_missing_and_ends_no_event() -> None:
    clocked = Clocked({"w": ExpectedJob(name="a"), "mine": ExpectedJob(user="agent")})
    clocked.tell(Queue(by="json"))
    assert "scheduler/main/w#missing" in {one.key for one in clocked.book.firing()}
    state = clocked.tell(Queue(by="json", only_of="agent"))
    watched = {one.name: one for one in state.watched}
    assert (watched["w"].missing, watched["w"].hidden) == (False, True)
    assert "PrivateData" in watched["w"].sentence
    assert (watched["mine"].missing, watched["mine"].hidden) == (True, False)
    assert "scheduler/main/w#missing" in {one.key for one in clocked.book.firing()}
    assert clocked.requests.alive() is None

    fresh = Clocked({"w": ExpectedJob(name="a")})
    fresh.tell(Queue(by="json", only_of="agent"))
    assert fresh.book.firing() == []


# --- when it is asked, and what that becomes ------------------------------------------------------


class Clocked:
    """One scheduler with answers of the test's own."""

    def __init__(self, expected: dict[str, ExpectedJob], **options: Any) -> None:
        self.inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self.jobs = JobsConfig(expected=expected)
        plugin = Plugin("slurm", slurm.Options(**{"only_on": ("*",), **options}))
        self.requests = PolledScheduler(
            "main", plugin, "node1", FakeSpawner(lambda _: Completed()), self.inbox
        )  # type: ignore[arg-type]
        self.book = EventRegistry(pending=0.0)

    def tell(self, answer: Queue | QueueError) -> SchedulerState:
        """An answer has come; the events hear of it."""
        value, error = (answer, None) if isinstance(answer, Queue) else (None, answer)
        self.requests.on_result(Result("scheduler:main", True, value, error))
        state = self.requests.state(self.jobs)
        word = together(of_schedulers([state], time.time()))
        for alarm in word.alerts:
            self.book.raise_(alarm, time.time())
        keys = {one.key for one in word.alerts}
        for key in self.book.keys(""):
            if word.is_over(key) and key not in keys:
                self.book.clear(key, time.time())
        return state

    def firing(self) -> list[str]:
        return sorted(one.alert.kind for one in self.book.all() if one.state is EventState.FIRING)


def job(name: str, **more: Any) -> QueueJob:
    """One that runs."""
    fields = {
        "state": "RUNNING",
        "standing": JobStanding.RUNNING,
        "number": "7",
        "user": "ada",
        **more,
    }
    return QueueJob(id="7", name=name, **fields)


def test_a_missing_job_fires_survives_an_outage_and_ends_when_it_is_back() -> None:
    clocked = Clocked({"pretrain": ExpectedJob(name="my-training")})
    clocked.tell(Queue(jobs=(job("my-training"),)))
    assert clocked.firing() == []
    clocked.tell(Queue(jobs=(job("other"),)))
    assert clocked.firing() == ["job_missing"]
    for _ in range(3):
        state = clocked.tell(QueueError("timeout", "squeue had not answered after 10 s"))
    assert (state.failing, state.failures) == (3, {"timeout": 3})
    assert clocked.firing() == ["job_missing", "scheduler_unanswered"]
    waits = job("my-training", state="PENDING", standing=JobStanding.QUEUED, reason="Resources")
    clocked.tell(Queue(jobs=(waits,)))
    assert clocked.firing() == []


def test_a_squeue_that_hangs_holds_up_no_turn(spawner: Spawner, tmp_path: Path) -> None:
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    sleeps = program(tmp_path, f"echo x >> {tmp_path}/asked; exec sleep 30")
    plugin = Plugin(
        "slurm", slurm.Options(only_on=("*",), squeue=sleeps, timeout=2.0, interval=0.01)
    )
    scheduler = PolledScheduler("main", plugin, "node1", spawner, inbox)
    deadline = time.monotonic() + 60 * PATIENCE
    while inbox.empty():  # each turn is one of the main loop's
        scheduler.tick()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (tmp_path / "asked").read_text() == "x\n"  # not a second one beside it
    result = inbox.get()
    assert result is not None
    scheduler.on_result(result)
    state = scheduler.state(JobsConfig())
    assert (state.success_at, state.failures) == (None, {"timeout": 1})
    assert "had not answered after 2 s" in state.trouble


def test_an_outage_from_the_start_calls_no_job_missing() -> None:
    clocked = Clocked({"pretrain": ExpectedJob(name="my-training")})
    for _ in range(5):
        clocked.tell(QueueError("not_started", "squeue could not be run: no such file"))
    assert clocked.firing() == ["scheduler_unanswered"]


def test_a_time_limit_that_is_near_is_told_before_it_ends_the_job() -> None:
    clocked = Clocked({"pretrain": ExpectedJob(name="my-*")})
    clocked.tell(Queue(jobs=(job("my-training", ends=time.time() + 1200),)))
    assert clocked.firing() == []
    clocked.tell(Queue(jobs=(job("my-training", ends=time.time() + 600),)))
    assert clocked.firing() == ["time_limit_near"]
    clocked.tell(Queue(jobs=(job("my-training", ends=time.time() + 3600),)))
    assert clocked.firing() == []


def test_only_named_nodes_ask() -> None:
    clocked = Clocked({}, only_on=("head*",))
    assert not clocked.requests.asks
    clocked.requests.tick()
    assert clocked.inbox.empty()
    assert clocked.requests.alive() is None


def test_a_config_of_schedulers_is_read(tmp_path: Path) -> None:
    text = "schedulers:\n  k: {kind: kubernetes, only_on: ['*'], server: 'http://example.org'}\n"
    with pytest.raises(Exception, match="clear text"):
        parse(text, "c.yaml", Config)
    good = "schedulers: {main: {kind: slurm, only_on: [h1]}}\njobs: {expected: {a: {name: x, id: 12}}}\n"
    assert parse(good, "c.yaml", Config).jobs.expected["a"].id == "12"


@pytest.mark.parametrize(
    ("schedulers", "expected", "problem"),
    [
        ("{}", "{name: x}", "there is no scheduler to ask"),
        (
            "{a: {kind: slurm, only_on: [h]}}",
            "{name: x, scheduler: b}",
            "b is no scheduler; choose from: a",
        ),
        (
            "{a: {kind: slurm, only_on: [h]}, b: {kind: slurm, only_on: [h]}}",
            "{name: x}",
            "has no scheduler; choose from: a, b",
        ),
        ("{a: {kind: slurm, only_on: [h]}}", "{}", "fits every job"),
        ("{a: {kind: slurm}}", "{name: x}", "a.only_on: name the one node whose agent asks"),
    ],
)
def test_a_watch_of_which_nobody_would_be_asked_is_refused(
    tmp_path: Path, schedulers: str, expected: str, problem: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"schedulers: {schedulers}\njobs: {{expected: {{w: {expected}}}}}\n")
    with pytest.raises(ConfigError, match=problem):
        load_config(file)


# --- what others see -----------------------------------------------------------------------------


def test_status_and_metrics_tell_the_same() -> None:
    clocked = Clocked({"pretrain": ExpectedJob(name="my-*"), "evals": ExpectedJob(name="eval")})
    now = time.time()
    waits = job("my-2", state="PENDING", standing=JobStanding.QUEUED, submitted=now - 60)
    nodes = (QueueNode(name="n2", state="drained", reason="bad\x1b[31m disk"),)
    runs = job("my-1", started=now - 7200, ends=now + 7200)
    state = clocked.tell(Queue(jobs=(runs, waits), nodes=nodes))
    lines = list(scheduler_lines([state], now))
    assert [bad for _, bad in lines] == [False, True, False]
    assert lines[0][0].startswith("pretrain: 7 (my-1): running for 2 h, its time limit ends it in ")
    assert lines[1][0] == "evals: no job named eval is running or queued"
    assert lines[2][0].startswith("main: n2 is drained (bad")
    assert "\x1b" not in lines[2][0]
    failed = clocked.tell(QueueError("timeout", "squeue had not answered after 10 s"))
    snapshot = Snapshot(node="n", at=now, started_at=now, schedulers=(failed,))
    group = scheduler_metrics.create(NoOptions())
    values = {(one.family.name, one.labels): one.value for one in group.samples(snapshot)}
    assert values["mldebug_scheduler_job_missing", ("main", "evals")] == 1
    assert values["mldebug_scheduler_jobs", ("main", "pretrain", "queued")] == 1
    assert values["mldebug_scheduler_pending_seconds", ("main", "pretrain")] == pytest.approx(60, abs=1)  # fmt: skip
    assert values["mldebug_scheduler_time_limit_left_seconds", ("main", "pretrain")] == pytest.approx(7200, abs=1)  # fmt: skip
    assert values["mldebug_scheduler_nodes_out", ("main", "drained")] == 1
    assert values["mldebug_scheduler_failures", ("main", "timeout")] == 1
    assert "did not answer" in next(iter(scheduler_lines([failed], now)))[0]


# --- Kubernetes ----------------------------------------------------------------------------------


def item(name: str, spec: dict[str, Any], status: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """An object as the API tells it."""
    facts = {"name": name, "namespace": "ml", "creationTimestamp": "2026-11-24T01:00:00Z", **meta}
    return {"metadata": facts, "spec": spec, "status": status}


def condition(word: str, is_: str = "True", **more: str) -> dict[str, str]:
    return {"type": word, "status": is_, "lastTransitionTime": "2026-11-24T01:05:00Z", **more}


OWNER = [{"kind": "JobSet", "name": "set", "controller": True}]
OBJECTS = {
    "jobs": [
        item("runs", {"activeDeadlineSeconds": 3600}, {"active": 2, "ready": 2, "startTime": "2026-11-24T01:05:00Z"}),
        item("waits", {}, {"active": 2, "ready": 0}),
        item("old", {}, {"active": 1}),
        item("done", {}, {"conditions": [condition("Complete")]}),
        item("failed", {}, {"conditions": [condition("Failed", message="BackoffLimitExceeded")]}),
        item("held", {"suspend": True}, {}),
        item("child", {}, {"active": 1, "ready": 1}, ownerReferences=OWNER),
        {"metadata": None},
        "odd",
    ],
    "pytorchjobs": [
        item("torch", {}, {"conditions": [condition("Created"), condition("Running")]}),
        item("again", {}, {"conditions": [condition("Running", "False"), condition("Restarting", message="pod died")]}),
    ],
    "jobsets": [item("set", {}, {"replicatedJobsStatus": [{"name": "w", "ready": 3, "active": 3}]})],
}  # fmt: skip


class Api(http.server.BaseHTTPRequestHandler):
    """Two objects a page; TrainJob is a kind that it does not have."""

    status = 200
    observed: list[tuple[str, str]] = []

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        plural = path.rpartition("/")[2]
        Api.observed.append((path, self.headers["Authorization"]))
        start = int(query.partition("continue=")[2] or 0)
        items = OBJECTS.get(plural, [])
        more = str(start + 2) if start + 2 < len(items) else ""
        body = json.dumps(
            {"metadata": {"continue": more}, "items": items[start : start + 2]}
        ).encode()
        self.send_response(404 if plural == "trainjobs" else Api.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[kubernetes.Options]:
    for name, text in (("token", "s3cret\n"), ("namespace", "ml")):
        (tmp_path / name).write_text(text)
    Api.status, Api.observed = 200, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield kubernetes.Options(
            server=f"http://127.0.0.1:{server.server_port}",
            token_file=tmp_path / "token",
            namespace_file=tmp_path / "namespace",
            timeout=60.0,
        )
        server.shutdown()


def ask_api(options: kubernetes.Options) -> dict[str, QueueJob]:
    answer = kubernetes.create(options).ask(FakeSpawner(lambda _: Completed()), nodes=True)
    return {one.name: one for one in answer.jobs}


def test_trainings_of_kubernetes_are_read_page_by_page(cluster: kubernetes.Options) -> None:
    jobs = ask_api(cluster)
    assert {name: one.standing.value for name, one in jobs.items()} == {
        "runs": "running", "waits": "queued", "old": "running", "done": "over", "failed": "over",
        "held": "queued", "torch": "running", "again": "queued", "set": "running",
    }  # fmt: skip
    assert jobs["runs"].id == "ml/runs"
    assert (jobs["runs"].ends or 0) - (jobs["runs"].started or 0) == 3600
    assert jobs["failed"].reason == "BackoffLimitExceeded"
    assert (jobs["again"].state, jobs["again"].reason) == ("RESTARTING", "pod died")
    assert {value for _, value in Api.observed} == {"Bearer s3cret"}
    assert "/apis/batch/v1/namespaces/ml/jobs" in {path for path, _ in Api.observed}


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "unauthorized"), (403, "forbidden"), (500, "failed")]
)
def test_a_refusal_is_no_empty_queue(cluster: kubernetes.Options, status: int, reason: str) -> None:
    Api.status = status
    with pytest.raises(QueueError) as raised:
        ask_api(cluster)
    assert raised.value.reason == reason
    assert "s3cret" not in str(raised.value)


def test_who_is_in_no_cluster_says_so(
    cluster: kubernetes.Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(QueueError, match="not set"):
        ask_api(msgspec.structs.replace(cluster, server=""))
    with pytest.raises(QueueError) as raised:
        ask_api(msgspec.structs.replace(cluster, token_file=Path("/no/token")))
    assert raised.value.reason == "no_account"
    with pytest.raises(QueueError) as raised:
        ask_api(msgspec.structs.replace(cluster, server="http://127.0.0.1:1"))
    assert raised.value.reason == "unreachable"
    assert os.environ.get("KUBERNETES_SERVICE_HOST") is None
