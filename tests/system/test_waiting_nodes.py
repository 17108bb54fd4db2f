"""`torchrun --nnodes` on hosts with networks of their own, of which not all have come: the agents of those that have count them together, one
report says it, and it ends when the last one comes.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes.harness import MARK, SCRIPTS, clean_environment, wait_for
from processes.needs import need_torch
from shared.system.patience import PATIENCE
from system.hosts import end_marked
from system.launching import need
from system.networks import NetworkHost, network
from system.test_peers import KEY, Agent, Report, follows, logs_of

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(500)]
need_torch("torchrun comes with PyTorch")

NAMES = ("n1", "n2", "n3")
INIT = 20 * PATIENCE  # seconds: torchrun's own imports take ten on a busy machine
SCRIPT = "import time; print('ready', flush=True); time.sleep(600)"
WAYS = {
    "c10d": ("--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29400", "--rdzv-id", "job7"),
}


class WaitingAgent(Agent):
    """An agent that holds launchers without ranks for stalled after `INIT` seconds."""

    stall = f"{{timeout: 300s, init_timeout: {INIT:g}s, interval: 1s}}"  # its ranks only sleep

    def waiting(self) -> dict[str, Any] | None:
        """The run without ranks, as its status has it."""
        return next((one for one in self._runs() if not one.get("ranks")), None)

    def trains(self) -> bool:
        """Whether a rank of it runs here."""
        return any(one.get("ranks") for one in self._runs())

    def _runs(self) -> list[dict[str, Any]]:
        runs = self.status().get("agent", {}).get("runs", ())
        return [one for one in runs if one["name"].startswith("train_waits.py")]


@pytest.fixture
def hosts() -> Iterator[dict[str, NetworkHost]]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("unshare", "nsenter", "ip")
    with network(NAMES) as found:
        yield found


@contextmanager
def agents(hosts: Mapping[str, NetworkHost], folder: Path) -> Iterator[dict[str, WaitingAgent]]:
    """One on each host, and all follow the first."""
    peers = "'n[1-3]'"
    found = {name: WaitingAgent(host, folder, KEY, peers, "0.0.0.0:9754") for name, host in hosts.items()}  # fmt: skip
    try:
        for name, agent in found.items():
            wait_for(f"{name} to follow the first", lambda one=agent: follows(one, peers), 60)
        yield found
    finally:
        for agent in found.values():
            agent.process.kill()
            agent.process.wait(10)


class Launch:
    """A torchrun of three nodes, host by host."""

    def __init__(self, hosts: Mapping[str, NetworkHost], folder: Path, way: str) -> None:
        self.hosts, self.folder, self.way = hosts, folder, WAYS[way]
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []
        self.script = folder / "train_waits.py"
        self.script.write_text(SCRIPT)

    def on(self, name: str) -> None:
        """Start it there."""
        number = str(NAMES.index(name))
        launcher = [sys.executable, str(SCRIPTS / "torchrun"), "--nnodes", "3", "--nproc-per-node", "1", "--node-rank", number]  # fmt: skip
        with (self.folder / f"job-{name}.log").open("ab") as log:
            one = subprocess.Popen(
                self.hosts[name].inside(*launcher, *self.way, str(self.script)),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=clean_environment(self.folder) | {MARK: self.mark},
            )  # fmt: skip
        self.started.append(one)

    def end(self) -> None:
        """Leave nothing of it."""
        end_marked(self.mark)
        for one in self.started:
            one.wait(20)


def sentence(agent: WaitingAgent) -> str:
    run = agent.waiting()
    return run["sentence"] if run else ""


def reports(found: Mapping[str, WaitingAgent]) -> list[Report]:
    return [one for agent in found.values() for one in agent.reports()]


@pytest.mark.parametrize("way", WAYS)
def test_two_of_three_nodes_are_counted_together_and_told_once(
    hosts: dict[str, NetworkHost], tmp_path: Path, way: str
) -> None:
    with ExitStack() as stack:
        found = stack.enter_context(agents(hosts, tmp_path))
        launch = Launch(hosts, tmp_path, way)
        stack.callback(launch.end)
        try:
            launch.on("n1")
            wait_for("the first", lambda: sentence(found["n1"]).startswith("waits for nodes, 1 of 3 present (n1) since "), 90)  # fmt: skip
            launch.on("n2")
            for name in ("n1", "n2"):
                here = found[name]
                wait_for(f"both, seen on {name}", lambda one=here: sentence(one).startswith("waits for nodes, 2 of 3 present (n[1-2]) since "), 90)  # fmt: skip
            assert sentence(found["n3"]) == ""

            wait_for("the report", lambda: reports(found), INIT + 60)
            (report,) = reports(found)
            assert report["diagnosis"]["verdict"] == "init_incomplete"
            assert report["diagnosis"]["culprits"] == []
            assert "2 of 3 present" in report["diagnosis"]["summary"]

            launch.on("n3")
            for name, agent in found.items():
                wait_for(f"the rank on {name}", agent.trains, 120)
            wait_for("its end", lambda: reports(found)[0]["state"] == "recovered", 60)
            assert [one["id"] for one in reports(found)] == [report["id"]]
            assert [sentence(one) for one in found.values()] == ["", "", ""]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(found)}") from None
