"""The rules and examples of deploy/prometheus/ in a real Prometheus and a real Alertmanager."""

import contextlib
import http.client
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mldebug_exporters.prometheus import Prometheus
from processes.harness import clean_environment, free_port, wait_for
from shared.web.snapshots import REPORT, moving, snapshot, stalled

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parents[3] / "deploy/prometheus"

Labels = dict[str, str]
SUPPRESSED: list[Labels] = [
    {"alertname": "MldebugGpuMissing", "instance": "n1", "uuid": "G1"},
    {"alertname": "MldebugAgentDown", "instance": "n1"},
    {"alertname": "MldebugNvlinkDown", "instance": "n2", "uuid": "G1"},
    {"alertname": "MldebugGpuUnhealthy", "instance": "n2", "component": "gpu_xid"},
    {"alertname": "MldebugRunStalled", "run": "r1"},
    {"alertname": "MldebugCheckpointLate", "run": "r1", "folder": "/ckpt"},
    {"alertname": "MldebugMemoryNearlyFull", "instance": "n2", "scope": "host"},
    {"alertname": "MldebugGpuThrottled", "instance": "n4", "uuid": "G9"},
]
"""Each by one of those that stay."""
STAYING: list[Labels] = [
    {"alertname": "MldebugAgentDownDuringRun", "instance": "n1"},
    {"alertname": "HostOfSomebodyElse", "instance": "n1"},
    {"alertname": "MldebugGpuMissing", "instance": "n3", "uuid": "G5"},
    {"alertname": "MldebugGpuXidFatal", "instance": "n2", "uuid": "G1"},
    {"alertname": "MldebugNvlinkDown", "instance": "n2", "uuid": "G2"},
    {"alertname": "MldebugComponentDegraded", "instance": "n2", "component": "memory"},
    {"alertname": "MldebugStall", "run": "r1", "node": "n3"},
    {"alertname": "MldebugRunStalled", "run": "r2"},
    {"alertname": "MldebugMemoryRunsOut", "instance": "n2", "scope": "host"},
    {"alertname": "MldebugNodeUnhealthy", "instance": "n4", "component": "kernel"},
]


@contextlib.contextmanager
def web(exposition: Callable[[], bytes] | bytes = b"", host: str = "127.0.0.1") -> Iterator[tuple[int, list[tuple[str, Any]]]]:  # fmt: skip
    """A port of `host` that serves metrics and keeps what is posted: path and alerts."""
    got: list[tuple[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(exposition if isinstance(exposition, bytes) else exposition())

        def do_POST(self) -> None:
            answer = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, answer["alerts"]))
            self._answer(b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer((host, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield server.server_port, got
        server.shutdown()


@contextlib.contextmanager
def serving(folder: Path, names: tuple[str, ...], *arguments: str) -> Iterator[int]:
    """The port of the first of these programs that is here; of none, it fails in CI and skips elsewhere."""
    program = next(filter(None, map(shutil.which, names)), None)
    assert program or "CI" not in os.environ, f"install the package `{names[0]}`"
    if program is None:
        pytest.skip(f"{names[0]} is not here")
    port, log = free_port(), folder / f"{names[0]}.log"
    argv = [program, f"--storage.{arguments[0]}={folder / names[0]}", f"--web.listen-address=127.0.0.1:{port}", *arguments[1:]]  # fmt: skip
    with log.open("wb") as out:
        server = subprocess.Popen(argv, stdout=out, stderr=out, env=clean_environment(folder))
    try:
        wait_for(f"{names[0]} is ready", lambda: ask(port, "/-/ready") is not None, 60)
        yield port
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text(errors='replace')[-2000:]}") from error
    finally:
        server.terminate()
        server.wait(30)


def ask(port: int, path: str, body: object = None) -> Any:
    """The JSON, else the text, of a good answer; None otherwise."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        sent = None if body is None else json.dumps(body)
        link.request("GET" if body is None else "POST", path, sent, {"Content-Type": "application/json"})  # fmt: skip
        answer = link.getresponse()
        content = answer.read()
    except OSError:
        return None
    finally:
        link.close()
    if answer.status != 200:
        return None
    return json.loads(content) if content[:1] in (b"[", b"{") else content.decode()


@contextlib.contextmanager
def alertmanager(folder: Path, receiver: int, agent: int = 0) -> Iterator[int]:
    """With the example as it is, but for addresses and the time that it waits for more of a group.

    Captures are asked of the port `agent`, else of the receiver's.
    """
    text = (FOLDER / "alertmanager.yaml").read_text(encoding="utf-8")
    text = re.sub(r"https://(pager|chat)\.example\.org", rf"http://127.0.0.1:{receiver}/\1", text)
    text = re.sub(r"http://n1\.example\.org:9753", f"http://127.0.0.1:{agent or receiver}", text)
    text = re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text)
    (folder / "token").write_text("0123456789abcdef")
    text = text.replace("/etc/prometheus/mldebug.token", str(folder / "token"))
    assert "example.org" not in text.replace("example.org/hook", "")
    (folder / "am.yaml").write_text(text, encoding="utf-8")
    names = ("prometheus-alertmanager", "alertmanager")
    file = f"--config.file={folder / 'am.yaml'}"
    with serving(folder, names, "path", file, "--cluster.listen-address=") as port:
        yield port


def rules_at_once(folder: Path) -> list[str]:
    """Both rule files without their `for`, which the tests of promtool hold."""
    for name in ("rules.yaml", "alerts.yaml"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        text = re.sub(r"^ +for: .*\n", "", text, flags=re.MULTILINE)
        (folder / name).write_text(text.replace("interval: 30s", "interval: 1s"), encoding="utf-8")
    return ["rules.yaml", "alerts.yaml"]


@contextlib.contextmanager
def prometheus(folder: Path, agent: int, alertmanagers: int, *more_agents: str) -> Iterator[int]:
    """With the example as it is, but for addresses, pace, and `for`."""
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
    config |= {"rule_files": rules_at_once(folder), "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}  # fmt: skip
    config["scrape_configs"][0]["static_configs"] = [
        {"targets": [f"127.0.0.1:{agent}", *more_agents]}
    ]
    config["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{alertmanagers}"]}]  # fmt: skip
    (folder / "prometheus.yaml").write_text(json.dumps(config))
    file = f"--config.file={folder / 'prometheus.yaml'}"
    with serving(folder, ("prometheus",), "tsdb.path", file) as port:
        yield port


def hidden_of(port: int) -> list[dict[str, str]]:
    """The labels of the alerts that another one hides now."""
    return [one["labels"] for one in ask(port, "/api/v2/alerts") or () if one["status"]["inhibitedBy"]]  # fmt: skip


def test_what_hides_what(tmp_path: Path) -> None:
    with web() as (receiver, _), alertmanager(tmp_path, receiver) as port:
        sent = [{"labels": {**one, "severity": "critical"}} for one in (*SUPPRESSED, *STAYING)]
        assert ask(port, "/api/v2/alerts", sent) is not None
        # Alertmanager answers a POST before the part of it that hides alerts has seen them all
        wait_for("as many hidden as should be", lambda: len(hidden_of(port)) >= len(SUPPRESSED), 20)
        hidden = hidden_of(port)
        assert len(ask(port, "/api/v2/alerts")) == len(sent)

    for one in hidden:
        del one["severity"]
    assert sorted(map(str, map(sorted, map(dict.items, hidden)))) == sorted(
        str(sorted(one.items())) for one in SUPPRESSED
    )


def test_a_stall_wakes_somebody(tmp_path: Path) -> None:
    """From an agent's exposition through the rules to the one who is paged; a run that trains is not mentioned."""
    text, _ = Prometheus().render(snapshot(moving(), stalled()), "text/plain")
    with (
        web(text) as (agent, got),
        alertmanager(tmp_path, agent) as manager,
        prometheus(tmp_path, agent, manager) as port,
    ):

        def paged() -> Any:
            sent = [one for path, alerts in got if path == "/pager/hook" for one in alerts]
            return [one for one in sent if one["labels"]["alertname"] == "MldebugRunStalled"]

        (alert, *_) = wait_for("somebody is paged", paged, 90)
        troubled = [rule["name"] for group in ask(port, "/api/v1/rules")["data"]["groups"] for rule in group["rules"] if rule["health"] == "err"]  # fmt: skip

    assert alert["labels"]["run"] == "7f3a"
    assert f"(rank_waiting, report {REPORT} on 127.0.0.1)" in alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"] == "docs/runbooks/MldebugRunStalled.md"
    assert "5c01" not in str(got)
    assert troubled == []
