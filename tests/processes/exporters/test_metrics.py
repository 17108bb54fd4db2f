"""A real Prometheus scrapes a real agent beside a real job: moving, stalled, moving again, and gone.

The agent may see other jobs of this machine: whatever is asserted is of our own run.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from processes.harness import (
    Plan,
    RunningJob,
    User,
    clean_environment,
    folder_for,
    free_port,
    running,
    state_of,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the scenarios train with PyTorch")

STRUCK = 2
STALL = "{timeout: 15s, interval: 1s}"


class Prometheus:
    """A server that scrapes one agent every second."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **parameters: object) -> Any:
        """The data of one API call; None while it does not answer."""
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            link.request("GET", f"/api/v1/{path}?{urlencode(parameters)}")
            answer = json.loads(link.getresponse().read())
        except (OSError, ValueError):
            return None
        finally:
            link.close()
        assert answer["status"] == "success", answer
        return answer["data"]

    def samples(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that a query gives now."""
        found = self.ask("query", query=query)
        return [(one["metric"], float(one["value"][1])) for one in found["result"]] if found else []

    def value(self, query: str) -> float | None:
        """The value of a query that gives at most one series."""
        found = self.samples(query)
        assert len(found) < 2, found
        return found[0][1] if found else None

    def wait(self, query: str, value: float | None, seconds: float = 60.0) -> None:
        """Wait until a query gives this value; None for nothing."""
        wait_for(f"{query} gives {value}", lambda: self.value(query) == value, seconds)


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[Prometheus]:
    """Start the real server; missing, it fails in CI and skips elsewhere."""
    program = shutil.which("prometheus")
    assert program or "CI" not in os.environ, "install the package `prometheus`"
    if program is None:
        pytest.skip("prometheus is not here")
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "mldebug", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        ],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))
    argv = [program, f"--config.file={folder / 'prometheus.json'}", f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log, env=clean_environment(folder))
    try:
        yield Prometheus(port)
    except AssertionError as error:
        entry = (folder / "prometheus.log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"{error}\n{entry}") from error
    finally:
        server.terminate()
        server.wait(30)


def test_prometheus_sees_a_run_move_stall_recover_and_end() -> None:
    port = free_port()
    with folder_for(User()) as folder:
        config = settings(folder, stall=STALL, listen=f"127.0.0.1:{port}")
        with watching(folder, config) as agent, prometheus(folder, port) as server:
            with running(Plan("none")) as job:
                run = a_moving_run(agent, job, server)
                every_family_has_its_type(server)
                promtool_has_nothing_to_say(port)
                report = a_stall(agent, job, server, run)
                the_report_is_an_exemplar(server, report)
                it_goes_on(job, server, run)
            it_is_gone(server, run)


def a_moving_run(agent: RunningAgent, job: RunningJob, server: Prometheus) -> str:
    """Up, with a step, a loss, step times and the agent's own cost."""
    job.wait_for_step(20)
    state = wait_for("the agent sees steps", lambda: getattr(agent.run_of(job), "step", None), 60)
    assert state
    result = agent.run_of(job)
    assert result is not None
    mine = f'{{run="{result.id}"}}'
    server.wait('up{job="mldebug"}', 1)
    server.wait(f"mldebug_run_up{mine}", 1)
    step = wait_for("a step", lambda: server.value(f"mldebug_run_step{mine}"), 60)
    wait_for("the next", lambda: (server.value(f"mldebug_run_step{mine}") or 0) > step, 60)
    wait_for("a rate", lambda: server.value(f"rate(mldebug_run_step_duration_seconds_count{mine}[20s]) > 0"), 60)  # fmt: skip
    median = server.value(
        f"histogram_quantile(0.5, rate(mldebug_run_step_duration_seconds_bucket{mine}[20s]))"
    )
    assert median is not None
    assert 0 < median < 10
    wait_for("progress of this moment", lambda: server.value(f"time() - mldebug_run_progress_timestamp_seconds{mine} < 10") is not None, 60)  # fmt: skip
    assert server.value(f'mldebug_run_info{{run="{result.id}",name="train.py"}}') == 1
    assert server.value("mldebug_agent_children >= 1") is not None
    assert (server.value("mldebug_agent_with_children_memory_bytes") or 0) > 10 << 20
    assert (server.value("mldebug_agent_resident_memory_bytes") or 0) > 10 << 20
    server.wait("mldebug_series - on(instance) scrape_samples_scraped", 0)
    return result.id


def every_family_has_its_type(server: Prometheus) -> None:
    """As Prometheus has understood the text."""
    by_name = {name: facts[0]["type"] for name, facts in server.ask("metadata").items()}
    assert by_name["mldebug_incidents"] == "counter"
    assert by_name["mldebug_agent_children_cpu_seconds"] == "counter"
    assert by_name["mldebug_run_up"] == "gauge"
    assert by_name["mldebug_run"] == "info"
    assert by_name["mldebug_run_step_duration_seconds"] == "histogram"
    assert "unknown" not in by_name.values()


def promtool_has_nothing_to_say(port: int) -> None:
    """Of what a live agent beside a live job exposes."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    link.request("GET", "/metrics", headers={"Accept": "text/plain"})
    text = link.getresponse().read()
    link.close()
    assert b"mldebug_run_step{" in text
    promtool = shutil.which("promtool")
    assert promtool, "it comes with the package `prometheus`"
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def a_stall(agent: RunningAgent, job: RunningJob, server: Prometheus, run: str) -> str:
    """One rank is stopped: the run is down, and the incident is open under the id of its report."""
    mine = f'{{run="{run}"}}'
    os.kill(job.ranks[STRUCK], signal.SIGSTOP)
    wait_for("the rank is stopped", lambda: state_of(job.ranks[STRUCK]) == "T", 10)
    server.wait(f"mldebug_run_up{mine}", 0, 60)
    wait_for("the report", lambda: agent.reports(job), 30)
    (report,) = agent.reports(job)
    text = f'mldebug_incidents_total{{kind="stall",verdict="{report["diagnosis"]["verdict"]}"}}'
    assert report["diagnosis"]["verdict"] == "rank_stopped"
    wait_for("it is counted", lambda: server.value(text), 30)
    ((labels, _),) = server.samples(f"mldebug_incident_open_info{mine}")
    assert (labels["report"], labels["kind"]) == (report["id"], "stall")
    quiet = server.value(f"time() - mldebug_incident_since_timestamp_seconds{mine}")
    assert quiet is not None
    assert 10 < quiet < 120
    ranks = server.samples(f"mldebug_rank_class_info{mine}")
    assert {one["rank"]: one["class"] for one, _ in ranks}[str(STRUCK)] == "stopped"
    return str(report["id"])


def the_report_is_an_exemplar(server: Prometheus, report: str) -> None:
    """Grafana links a point of the counter to it."""
    now = time.time()
    query = {"query": "mldebug_incidents_total", "start": now - 300, "end": now + 60}

    def exemplars() -> list[dict[str, str]]:
        found = server.ask("query_exemplars", **query) or []
        return [exemplar["labels"] for one in found for exemplar in one["exemplars"]]

    wait_for("the report is an exemplar", lambda: {"report": report} in exemplars(), 30)


def it_goes_on(job: RunningJob, server: Prometheus, run: str) -> None:
    """The rank is let go: the run is up again, no incident is open, and no counter fell."""
    mine, slow = f'{{run="{run}"}}', slow_steps(server, run)
    os.kill(job.ranks[STRUCK], signal.SIGCONT)
    server.wait(f"mldebug_run_up{mine}", 1)
    server.wait(f"mldebug_incident_open_info{mine}", None)
    wait_for("the pause is a slow step", lambda: slow_steps(server, run) > slow, 30)
    for counter in (f"mldebug_run_step_duration_seconds_bucket{mine}", "mldebug_incidents_total",
                    "mldebug_agent_cpu_seconds_total", "mldebug_agent_children_cpu_seconds_total"):  # fmt: skip
        assert server.samples(f"resets({counter}[10m]) > 0") == []


def slow_steps(server: Prometheus, run: str) -> float:
    """Steps of more than 2.5 s: its log has a record for every fifth, so a pause of 15 s is five of 3 s and more."""
    name = "mldebug_run_step_duration_seconds"
    fast = f'{name}_bucket{{run="{run}",le="2.5"}}'
    return server.value(f'{name}_count{{run="{run}"}} - ignoring(le) {fast}') or 0.0


def it_is_gone(server: Prometheus, run: str) -> None:
    """What has ended vanishes at the next scrape; what was counted stays."""
    server.wait(f'count({{run="{run}"}})', None)
    assert (server.value('mldebug_incidents_total{kind="stall",verdict="rank_stopped"}') or 0) >= 1
    assert server.value('up{job="mldebug"}') == 1
