"""One real job on two hosts with an agent each, in a real Prometheus with the shipped rules: each node has an id of its own for the run, and
dashboards, recorded series and alerts take it for one run all the same.
"""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from processes.harness import MLDEBUG, wait_for
from shared.deploy.dashboards import queries
from system.hosts import job_on
from system.launching import need
from system.networks import NetworkHost, network
from system.test_peers import root
from system.test_ports_of_peers import NDR, agents, prometheus

__all__ = ["root"]  # used by pytest: hosts are namespaces

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(600)]
NAMES = ("n1", "n2")
ALERTS = 'ALERTS{alertstate="firing",run!=""}'


class Scraped:
    """A Prometheus on a host, and what Grafana would fill in for the one run that it knows."""

    def __init__(self, host: NetworkHost) -> None:
        self.host = host

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query gives now."""
        argv = ["curl", "--silent", "--max-time", "10", "--data-urlencode", f"query={query}", "http://127.0.0.1:9090/api/v1/query"]  # fmt: skip
        done = subprocess.run(self.host.inside(*argv), check=False, capture_output=True, text=True)
        if not done.stdout.startswith('{"status":"success"'):
            return []
        found: list[dict[str, Any]] = json.loads(done.stdout)["data"]["result"]
        return found

    def labels(self, query: str, name: str) -> list[str]:
        """The values of one label, one for each series; "" where it has none."""
        return sorted(one["metric"].get(name, "") for one in self.ask(query))

    def shown(self, panel: str) -> list[dict[str, Any]]:
        """What a panel shows, filled in as Grafana does: `mldebug-job: Loss A`."""
        (text,) = (one.expression for one in queries() if one.name == panel)
        (across,) = set(self.labels("mldebug_run_across_nodes_info", "run_across_nodes"))
        own = self.labels(f'mldebug_run_across_nodes_info{{run_across_nodes="{across}"}}', "run")
        for name, value in {"$run": across, "$own": "|".join(own), "$__rate_interval": "10s"}.items():  # fmt: skip
            text = text.replace(name, value)
        assert "$" not in text, text
        return self.ask(text)


def test_a_run_on_two_nodes_is_one_run(tmp_path: Path) -> None:
    need("unshare", "nsenter", "ip", "prometheus", "curl")
    with (
        network(NAMES) as hosts,
        agents(hosts, tmp_path, (NDR, NDR)) as found,
        job_on(list(hosts.values()), tmp_path / "job", 1, before=(*MLDEBUG, "run", "--")) as events,
        prometheus(hosts["n1"], tmp_path, [f"{one.address}:9753" for one in hosts.values()]),
    ):
        server = Scraped(hosts["n1"])
        try:
            wait_for("the job to step", lambda: all((events / f"step.{rank}").exists() for rank in range(2)), 280)  # fmt: skip
            wait_for("both nodes' ids of the run", lambda: len(server.ask("mldebug_run_across_nodes_info")) == 2, 90)  # fmt: skip
            wait_for("the recorded series", lambda: server.ask("mldebug:run_steps:rate5m"), 90)
            wait_for("steps of both nodes", lambda: len(server.shown("mldebug-job: Step of each node A")) == 2, 90)  # fmt: skip
            it_is_one(server)
            stop(hosts["n2"])
            wait_for("the stall", lambda: server.labels(ALERTS, "alertname"), 200)
            it_stands(server)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{[one.log[-1500:] for one in found.values()]}") from None  # fmt: skip


def it_is_one(server: Scraped) -> None:
    """While it steps."""
    assert len(set(server.labels("mldebug_run_info", "run"))) == 2, "of each node its own id"
    for title in ("No progress for", "Steps/s", "Step"):
        number = "ABC"[("No progress for", "Steps/s", "Step").index(title)]
        assert len(server.shown(f"mldebug-cluster: Each run {number}")) == 1, title
    assert values(server, "mldebug-cluster: Runs A") == ["1"]
    assert len(server.shown("mldebug-job: Pace A")) == 1
    assert len(server.shown("mldebug-job: No progress for A")) == 1
    assert len(server.shown("mldebug-job: Step A")) == 1
    wait_for(
        "the ranks of both nodes", lambda: ranks_shown(server) == ["0", "1"], 90
    )  # each agent samples them in a turn of its own


def ranks_shown(server: Scraped) -> list[str]:
    """The ranks whose memory is shown, in order."""
    return sorted(
        one["metric"]["rank"] for one in server.shown("mldebug-job: Host memory of ranks A")
    )


def values(server: Scraped, panel: str) -> list[str]:
    """What a panel's series are now."""
    return [one["value"][1] for one in server.shown(panel)]


def stop(host: NetworkHost) -> None:
    """Stop the rank of this host, as a debugger does."""
    pids = subprocess.run(host.inside("sh", "-c", "grep -lza '^RANK=1$' /proc/[0-9]*/environ"), check=False, capture_output=True, text=True).stdout  # fmt: skip
    numbers = [word.split("/")[2] for word in pids.split()]
    assert numbers
    subprocess.run(host.inside("kill", f"-{signal.SIGSTOP.value}", *numbers), check=True)


def it_stands(server: Scraped) -> None:
    """Once its stall is known."""
    fired = server.ask(ALERTS)
    print(fired)
    assert {one["metric"]["alertname"] for one in fired} == {"MldebugRunStalled"}
    (across,) = set(server.labels("mldebug_run_across_nodes_info", "run_across_nodes"))
    assert {one["metric"]["run_across_nodes"] for one in fired} == {across}, "one message"
    # recorded series and alerts are made by turns of their own
    wait_for("one run that stands", lambda: values(server, "mldebug-cluster: Runs that stand A") == ["1"], 60)  # fmt: skip
    assert {one["metric"]["run_across_nodes"] for one in server.shown("mldebug-cluster: Open incidents A")} == {across}  # fmt: skip
