"""Alertmanager's webhook asks for captures: who may, of which runs, and how often. The door is the agent's own, over TCP."""

import http.client
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mldebug.config.schema import AgentConfig
from mldebug.core.errors import MldebugError
from mldebug.core.model import Job, NodeCapture
from mldebug_agents.alerts.action_runner import capture_requests as module
from mldebug_agents.alerts.action_runner.alertmanager import AlertReceiver
from mldebug_agents.alerts.action_runner.capture_requests import CaptureRequests
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.system.workers import Result
from mldebug_agents.web import alertmanager_route
from mldebug_agents.web.server import AgentServer
from processes.harness import free_port
from shared.system.hung import wait_until
from shared.web.snapshots import snapshot

TOKEN = "0123456789abcdef-the-token"
ONE = Job(id="aaaa1111", name="train.py", launcher="torchrun")
TWO = Job(id="bbbb2222", name="eval.py", launcher="torchrun")
JOBS = {job.id: job for job in (ONE, TWO)}


class Bench:
    """Captures nothing, and remembers of what."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def capturer(self, _: float) -> "Bench":
        return self

    def capture(self, job: Job, *_: Any, quiet: float | None) -> NodeCapture:
        self.gate.wait(30)
        self.taken.append(job.id)
        return NodeCapture(node="node1", job=job, taken_at=0.0)


class Stand:
    """An agent's door with two runs behind it."""

    def __init__(
        self,
        folder: Path,
        elsewhere: Any = None,
        token: str | None = TOKEN,
        across: Callable[[str, Job | None], str] | None = None,
    ) -> None:
        file = folder / "token"
        file.write_text(f"{token}\n")
        file.chmod(0o600)
        self.bench, self.now = Bench(), 1000.0
        inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self.captures = CaptureRequests(
            self.bench.capturer,  # type: ignore[arg-type]
            inbox,
            lambda capture: f"report-of-{capture.job.id}",
            across,
            clock=lambda: self.now,
        )
        self.captures.show(JOBS, Discovery())
        self.port = free_port()
        path = file if token is not None else None
        self.server = AgentServer(
            AgentConfig(state_dir=folder, listen=f"127.0.0.1:{self.port}", token_file=path)
        )
        self.server.publish(snapshot())
        self.server.take_alerts = AlertReceiver(self.captures, "node1.example", elsewhere).answer
        self.server.start()

    def post(self, body: bytes, token: str = TOKEN) -> tuple[int, Any]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        link.request("POST", alertmanager_route.PATH, body, headers)
        answer = link.getresponse()
        document = json.loads(answer.read())
        link.close()
        return answer.status, document

    def alert(self, *labels: dict[str, str], status: str = "firing") -> tuple[int, Any]:
        return self.post(payload(*labels, status=status))

    def taken(self, count: int) -> list[str]:
        wait_until(lambda: len(self.bench.taken) >= count)
        return sorted(self.bench.taken)


def payload(*labels: dict[str, str], status: str = "firing", version: str = "4") -> bytes:
    """As Alertmanager 0.28 sends it."""
    alerts = [
        {
            "status": status, "labels": one, "annotations": {"summary": "it hangs"}, "fingerprint": "c0ffee",
            "startsAt": "2026-01-01T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://p/graph",
        }
        for one in labels
    ]  # fmt: skip
    facts = {"receiver": "r", "status": status, "alerts": alerts, "version": version, "groupKey": "{}",
            "truncatedAlerts": 0, "groupLabels": {}, "commonLabels": {}, "externalURL": "http://am"}  # fmt: skip
    return json.dumps(facts).encode()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    one = Stand(tmp_path)
    yield one
    one.server.stop(5)


# --- who may -------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], f"{TOKEN}x", "é"])
def test_who_does_not_show_the_token_gets_nothing(stand: Stand, token: str) -> None:
    status, answer = stand.post(payload({"run": ONE.id}), token)
    assert (status, "token" in answer["error"]) == (401, True)
    assert TOKEN not in str(answer)
    assert stand.bench.taken == []


def test_without_a_token_file_the_door_is_shut(tmp_path: Path) -> None:
    stand = Stand(tmp_path, token=None)
    status, answer = stand.post(payload({"run": ONE.id}), "None")
    assert (status, "it has no token" in answer["error"]) == (403, True)
    stand.server.stop(5)


def test_a_short_or_missing_token_file_opens_nothing(tmp_path: Path, stand: Stand) -> None:
    (tmp_path / "token").write_text("short\n")
    assert stand.post(payload({"run": ONE.id}), "short")[0] == 503
    (tmp_path / "token").unlink()
    status, answer = stand.post(payload({"run": ONE.id}))
    assert (status, str(tmp_path) in str(answer)) == (503, False)
    assert stand.bench.taken == []


def test_a_token_that_others_may_read_opens_nothing(tmp_path: Path, stand: Stand) -> None:
    (tmp_path / "token").chmod(0o644)
    assert stand.post(payload({"run": ONE.id}))[0] == 503
    assert stand.bench.taken == []


def test_a_token_that_is_rotated_counts_at_once(tmp_path: Path, stand: Stand) -> None:
    (tmp_path / "token").write_text("another-token-of-16\n")
    assert stand.alert({"run": ONE.id})[0] == 401
    assert stand.post(payload({"run": ONE.id}), "another-token-of-16")[0] == 200


# --- what it says --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"version": "4", "alerts": [{"status": 1}]}', b'{"alerts": []}',
     payload({"run": "x"}, version="3"), b"[" * 100_000, b'{"version": "4", "groupLabels": ' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_payload_is_refused_in_words(stand: Stand, body: bytes) -> None:
    status, answer = stand.post(body)
    assert (status, bool(answer["error"])) == (400, True)


def test_a_body_without_end_is_cut(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertmanager_route, "MAX_BODY", 10_000)
    assert stand.post(b" " * 10_001)[0] == 413
    monkeypatch.setattr(alertmanager_route, "PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", stand.port), 30) as link:
        head = f"POST {alertmanager_route.PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        link.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in link.recv(4096)


# --- of which runs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "runs"),
    [
        ({"run": ONE.id}, [ONE.id]),
        ({"run": "train.py"}, [ONE.id]),
        ({"job": "eval.py"}, [TWO.id]),
        ({"run": ONE.id, "job": "mldebug", "node": "node7"}, [ONE.id]),
        ({"job": "mldebug", "node": "node1"}, [ONE.id, TWO.id]),  # Prometheus' own label `job`
        ({"node": "node1:9753"}, [ONE.id, TWO.id]),
    ],
)
def test_labels_choose_the_run(stand: Stand, labels: dict[str, str], runs: list[str]) -> None:
    status, answer = stand.alert({"alertname": "X", **labels})
    assert (status, sorted(one["run"] for one in answer["captures"])) == (200, runs)
    assert stand.taken(len(runs)) == runs


@pytest.mark.parametrize(
    "labels",
    [{}, {"run": "nope"}, {"run": "aaaa"}, {"job": "nope"}, {"node": "node2"},
     {"run": "nope", "node": "node1"}, {"run": "\x1b[31m\nnope"}],
)  # fmt: skip
def test_an_unknown_run_is_answered_with_those_that_there_are(
    stand: Stand, labels: dict[str, str]
) -> None:
    status, answer = stand.alert(labels)
    assert (status, answer["captures"]) == (404, [])
    assert "aaaa1111 (train.py), bbbb2222 (eval.py)" in answer["error"]
    assert "\x1b" not in answer["error"]
    assert stand.bench.taken == []


def test_what_is_resolved_asks_for_nothing(stand: Stand) -> None:
    assert stand.alert({"run": ONE.id}, status="resolved") == (200, {"captures": [], "error": ""})
    assert stand.bench.taken == []


# --- how often -----------------------------------------------------------------------------------


def test_ten_thousand_alerts_of_one_run_are_one_capture(stand: Stand) -> None:
    labels = [{"alertname": f"A{n}", "run": ONE.id, "instance": f"i{n}"} for n in range(10_000)]
    status, answer = stand.alert(*labels, {"run": "nope"})
    assert (status, [one["run"] for one in answer["captures"]]) == (200, [ONE.id])
    assert stand.taken(1) == [ONE.id]


def test_within_a_minute_one_capture_serves_all(stand: Stand) -> None:
    stand.alert({"run": ONE.id})
    stand.taken(1)
    stand.now += module.PAUSE - 1
    _, answer = stand.alert({"run": ONE.id})
    assert answer["captures"] == [
        {"run": ONE.id, "name": "train.py", "asked_seconds_ago": module.PAUSE - 1}
    ]
    stand.now += 2
    (again,) = stand.alert({"run": ONE.id})[1]["captures"]
    assert again["asked_seconds_ago"] == 0
    assert stand.taken(2) == [ONE.id, ONE.id]


def test_where_too_many_wait_alertmanager_is_asked_to_come_again(stand: Stand) -> None:
    stand.bench.gate.clear()
    many = {f"r{n}": Job(id=f"r{n}", name="many", launcher="x") for n in range(100)}
    stand.captures.show(many, Discovery())
    status, answer = stand.alert({"run": "many"})
    stand.bench.gate.set()
    assert (status, "too many captures wait" in answer["error"]) == (503, True)


# --- other nodes ---------------------------------------------------------------------------------


def test_all_nodes_are_asked_where_they_are_joined_and_this_one_else(tmp_path: Path) -> None:
    requests: list[tuple[str, Job | None]] = []

    def across(name: str, job: Job | None) -> str:
        requests.append((name, job))
        if job is TWO:
            raise MldebugError("nobody coordinates")
        return "report-of-all"

    stand = Stand(tmp_path, across=across)
    assert stand.captures.ask(ONE.id, ONE).report.result(30) == "report-of-all"
    assert stand.captures.ask(TWO.id, TWO).report.result(30) == "report-of-bbbb2222"
    assert (requests, stand.bench.taken) == ([(ONE.id, ONE), (TWO.id, TWO)], [TWO.id])
    stand.server.stop(5)


def test_a_run_on_other_nodes_alone_is_captured_there(tmp_path: Path) -> None:
    def elsewhere(names: Iterable[str]) -> Iterator[str]:
        yield from (f"id-of-{one}" for one in names if one == "far.py")

    stand = Stand(tmp_path, elsewhere, across=lambda name, job: f"report-of-{name}")
    status, answer = stand.alert({"job": "far.py"}, {"job": "nope"})
    assert (status, [one["run"] for one in answer["captures"]]) == (200, ["id-of-far.py"])
    reply = stand.captures.ask("id-of-far.py", None)
    assert reply.report.result(30) == "report-of-id-of-far.py"
    assert stand.alert({"job": "nope"})[0] == 404
    stand.server.stop(5)


def test_a_capture_that_fails_says_why(stand: Stand) -> None:
    with pytest.raises(MldebugError, match="no rank of it is on this node"):
        stand.captures.ask("far.py", None).report.result(30)
