"""A real Alertmanager takes our alerts, passes them on to its own receiver, and sees them end."""

import contextlib
import http.client
import http.server
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mldebug.alerts.message import message_of
from mldebug.alerts.model import Alert, AlertEvent, EventMessage, EventState, Severity
from mldebug_exporters.channels import alertmanager
from processes.harness import (
    PACE,
    Plan,
    User,
    clean_environment,
    folder_for,
    free_port,
    running,
    wait_for,
)
from processes.incidents.watching import settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(200)]


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, list[Any]]]:
    """What Alertmanager sends on: status and alert, in order."""
    got: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.extend(answer["alerts"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", got
        server.shutdown()


@contextlib.contextmanager
def running_alertmanager(
    folder: Path, send_to: str, token_file: Path | None = None
) -> Iterator[int]:
    """The port of the real server; missing, it fails in CI and skips elsewhere."""
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    assert program or "CI" not in os.environ, "install the package `prometheus-alertmanager`"
    if program is None:
        pytest.skip("prometheus-alertmanager is not here")
    port = free_port()
    route = {"receiver": "r", "group_wait": "1s", "group_interval": "1s", "group_by": ["..."]}
    hook: dict[str, Any] = {"url": send_to}
    if token_file is not None:
        hook["http_config"] = {"authorization": {"credentials_file": str(token_file)}}
    config = {"route": route, "receivers": [{"name": "r", "webhook_configs": [hook]}]}
    (folder / "am.json").write_text(json.dumps(config))
    argv = [program, f"--config.file={folder / 'am.json'}", f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]  # fmt: skip
    with (folder / "am.log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log, env=clean_environment(folder))
    try:
        wait_for("Alertmanager is ready", lambda: get(port, "/-/ready") is not None, 60)
        yield port
    except AssertionError as error:
        entry = (folder / "am.log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"{error}\n{entry}") from error
    finally:
        server.terminate()
        server.wait(30)


def get(port: int, path: str) -> bytes | None:
    """The body of a good answer."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        body = answer.read()
    except OSError:
        return None
    finally:
        link.close()
    return body if answer.status == 200 else None


def message(state: EventState, sentence: str, started: float) -> EventMessage:
    """Of one incident with a name that nobody would choose."""
    alarm = Alert(
        key="incident/R1", kind="stall", severity=Severity.CRITICAL, sentence=sentence, report="R1",
        labels={"run": "r", "job": 'müller "x"\n{a="b"}'}, verdict="rank_stopped",
    )  # fmt: skip
    ended = time.time() if state is EventState.RESOLVED else None
    event = AlertEvent(alert=alarm, state=state, started=started, ended=ended, outcome="recovered")
    return message_of(event, "node1")


def test_one_alert_is_passed_on_refined_and_resolved(tmp_path: Path) -> None:
    started = time.time() - 60
    with receiver() as (url, got), running_alertmanager(tmp_path, url) as port:
        channel = alertmanager.create(alertmanager.Options(url=f"http://127.0.0.1:{port}"))
        channel.send(message(EventState.FIRING, "nobody moves", started))
        wait_for("the alert is passed on", lambda: got, 60)
        channel.send(
            message(EventState.FIRING, "rank 2 is stopped", started)
        )  # sent again, refined
        (alert,) = json.loads(get(port, "/api/v2/alerts") or b"[]")
        channel.send(message(EventState.RESOLVED, "rank 2 is stopped", started))
        wait_for("its end is passed on", lambda: got[-1]["status"] == "resolved", 60)
        left = json.loads(get(port, "/api/v2/alerts") or b"[]")

    assert alert["annotations"]["summary"] == "rank 2 is stopped"
    assert alert["labels"]["alertname"] == "MldebugStall"
    assert "müller" in alert["labels"]["job"]
    assert [one["status"] for one in got] == ["firing", "resolved"]
    assert len({one["fingerprint"] for one in got}) == 1
    assert got[-1]["annotations"]["outcome"] == "recovered"
    assert left == []


def fire(port: int, **labels: str) -> None:
    """As Prometheus sends an alert of some rule."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps([{"labels": labels, "annotations": {"summary": "of a rule"}}])
    link.request("POST", "/api/v2/alerts", body, {"Content-Type": "application/json"})
    assert link.getresponse().status == 200
    link.close()


def test_an_alert_of_any_rule_has_all_ranks_captured_once() -> None:
    need_torch("the scenarios train with PyTorch")
    user = User()
    with folder_for(user) as folder, running(Plan(struck=(), options=PACE, user=user)) as job:
        token, listen = folder / "token", f"127.0.0.1:{free_port()}"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        config = settings(folder, stall="{timeout: 120s, interval: 1s}", listen=listen).replace(
            "agent: {", f"agent: {{token_file: {token}, ", 1
        )
        job.wait_for_step(60)
        with (
            watching(folder, config, user) as agent,
            running_alertmanager(folder, f"http://{listen}/api/v1/alerts", token) as port,
        ):
            wait_for("the agent sees the job", lambda: agent.run_of(job), 60)
            run = agent.run_of(job)
            assert run is not None
            for name in ("StepTimeHigh", "LossIsNaN"):  # two groups: Alertmanager sends them apart
                fire(port, alertname=name, run=run.id, job="mldebug", severity="warning")
            fire(port, alertname="OfAnother", run="nope")
            wait_for("a report of it", lambda: agent.reports(job), 90)
            wait_for("a clear answer", lambda: "404" in (folder / "am.log").read_text(), 60)
            (report,) = agent.reports(job)
            ranks = sorted(job.ranks)

    assert (report["trigger"], report["state"]) == ("alert", "open")
    assert sorted(rank["rank"] for rank in report["ranks"]) == ranks
