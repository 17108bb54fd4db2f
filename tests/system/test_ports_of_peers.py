"""Two agents in networks of their own, each with network ports of its own below /sys, and one real job on both nodes: the node whose ports came
up at a lower rate is named in the report of the two, and by the shipped alert in a real Prometheus that scrapes both.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from processes.exporters.test_prometheus_rules import rules_at_once
from processes.harness import SCRIPTS, clean_environment, wait_for
from shared.hardware.porttrees import PortTree
from system.hosts import job_on
from system.launching import need
from system.networks import NetworkHost, network
from system.test_peers import KEY, Report, root

__all__ = ["root"]  # used by pytest: hosts are namespaces

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(600)]
NAMES = ("n1", "n2")
NDR, HDR = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"
ALERT = "MldebugPortsSlowerThanPeers"
SLOWER = "network ports of n2: 2 x 200 Gb/s infiniband (mlx5_0/1, mlx5_1/1); of 1 other node: 2 x 400 Gb/s infiniband"


class AgentWithPorts:
    """An agent on a host whose /sys/class has two InfiniBand ports; it serves metrics to the other hosts, too."""

    def __init__(self, host: NetworkHost, folder: Path, rate: str) -> None:
        self.host, self.folder = host, folder / host.name
        self.tree = PortTree(self.folder / "root")
        self.at(rate)
        (self.folder / "root/sys/class/net").mkdir()
        folder = self.folder / "root/sys/class"
        subprocess.run(host.inside("mount", "--bind", str(folder), "/sys/class"), check=True)
        key = self.folder / "key"
        key.write_text(KEY)
        key.chmod(0o600)
        self.config = self.folder / "mldebug.yaml"
        self.config.write_text(
            f"agent: {{state_dir: {self.folder}/state, listen: '0.0.0.0:9753'}}\n"
            "stall: {timeout: 60s, interval: 1s}\n"
            f"cluster: {{key_file: {key}, peers: ['n[1-2]'], networks: [10.77.0.0/24, 127.0.0.0/8], interval: 1s}}\n"
        )
        self.process = self._start()

    def at(self, rate: str) -> None:
        """Both ports are up at this rate from now on."""
        for number in range(2):
            self.tree.rdma(f"mlx5_{number}", rate)

    def _start(self) -> "subprocess.Popen[bytes]":
        argv = [str(SCRIPTS / "mldebug"), "agent", "--config", str(self.config)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                self.host.inside(*argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=clean_environment(self.folder), start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(10)

    def again(self) -> None:
        """Another agent in its place, which has nothing of what this one knew."""
        self.end()
        subprocess.run(["rm", "-rf", str(self.folder / "state")], check=True)
        self.process = self._start()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def dump(self) -> Report:
        """A report of all nodes, asked for here; empty where it cannot be made yet."""
        argv = [str(SCRIPTS / "mldebug"), "dump", "--json", "--cluster", "--job", "train.py", "--config", str(self.config)]  # fmt: skip
        done = subprocess.run(
            self.host.inside(*argv), check=False, capture_output=True, text=True, timeout=90,
            env=clean_environment(self.folder),
        )  # fmt: skip
        report: Report = json.loads(done.stdout) if done.stdout else {}
        return report

    def compared(self) -> list[str]:
        """What a report of both nodes says of their ports; it has to be of both."""
        report = self.dump()
        assert [one["state"] for one in report["nodes"]] == ["answered"] * 2, report["nodes"]
        return [line for line in report["hardware"] if "network ports" in line]


@contextmanager
def agents(hosts: Mapping[str, NetworkHost], folder: Path, rates: Sequence[str]) -> Iterator[dict[str, AgentWithPorts]]:  # fmt: skip
    """One on each host, with ports of these rates."""
    found = {host.name: AgentWithPorts(host, folder, rate) for host, rate in zip(hosts.values(), rates, strict=True)}  # fmt: skip
    try:
        yield found
    finally:
        for one in found.values():
            one.end()


@contextmanager
def prometheus(host: NetworkHost, folder: Path, targets: Sequence[str]) -> Iterator[None]:
    """The real server on that host, with the shipped rules at once; it scrapes each agent by its address."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": rules_at_once(folder),
        "scrape_configs": [{"job_name": "mldebug", "static_configs": [{"targets": list(targets)}]}],
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    argv = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}", "--web.listen-address=127.0.0.1:9090"]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(host.inside(*argv), stdout=log, stderr=log, env=clean_environment(folder))  # fmt: skip
    try:
        yield
    finally:
        server.terminate()
        server.wait(30)


def firing(host: NetworkHost) -> set[str] | None:
    """The instances for which the alert about slower ports fires; None while the server does not answer."""
    argv = host.inside("curl", "--silent", "--max-time", "10", "http://127.0.0.1:9090/api/v1/alerts")  # fmt: skip
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if not done.stdout.startswith('{"status":"success"'):
        return None
    alerts: list[dict[str, Any]] = json.loads(done.stdout)["data"]["alerts"]
    of_it = [one for one in alerts if one["labels"]["alertname"] == ALERT and one["state"] == "firing"]  # fmt: skip
    return {one["labels"]["instance"] for one in of_it}


def test_the_node_whose_ports_are_slower_is_named_by_report_and_alert(tmp_path: Path) -> None:
    """And no more when its ports are as fast as those of the other."""
    need("unshare", "nsenter", "ip", "prometheus", "curl")
    with (
        network(NAMES) as hosts,
        agents(hosts, tmp_path, (NDR, HDR)) as found,
        job_on(list(hosts.values()), tmp_path / "job", 1) as events,
        prometheus(hosts["n1"], tmp_path, [f"{one.address}:9753" for one in hosts.values()]),
    ):
        first, second = found["n1"], found["n2"]
        slow = {f"{hosts['n2'].address}:9753"}
        try:
            wait_for("the job to step", lambda: all((events / f"step.{rank}").exists() for rank in range(2)), 280)  # fmt: skip
            wait_for("a report of both", lambda: len(first.dump().get("nodes", ())) == 2, 60)
            assert first.compared() == [SLOWER]
            assert second.compared() == [SLOWER]  # asked anywhere
            wait_for("the alert", lambda: firing(hosts["n1"]) == slow, 90)

            second.at(NDR)
            second.again()
            wait_for("a report of both again", lambda: len(first.dump().get("nodes", ())) == 2, 60)
            wait_for("no alert", lambda: firing(hosts["n1"]) == set(), 90)
            assert first.compared() == []
        except AssertionError as error:
            raise AssertionError(f"{error}\n{first.log[-2000:]}\n{second.log[-2000:]}") from None
