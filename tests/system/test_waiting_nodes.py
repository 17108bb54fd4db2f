"""`torchrun --nnodes` on hosts with networks of their own, of which not all have come: the agents of those that have count them together, one
report says it, and it ends when the last one comes.
"""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from processes.harness import MARK, SCRIPTS, clean_environment, wait_for
from processes.needs import need_torch
from shared.system.hung import missing
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
ETCD = 2379
WAYS: dict[str, tuple[str, ...]] = {
    "c10d": ("--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29400", "--rdzv-id", "job7"),
    "static": ("--master-addr", "n1", "--master-port", "29500"),
    "etcd": ("--rdzv-backend", "etcd-v2", "--rdzv-endpoint", f"n1:{ETCD}", "--rdzv-id", "job7"),
}
OF_SLURM = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NNODES": "3"}


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

    def __init__(self, hosts: Mapping[str, NetworkHost], folder: Path, way: str, more: Mapping[str, str]) -> None:  # fmt: skip
        """`more`: of its environment on each host."""
        self.hosts, self.folder, self.way, self.more = hosts, folder, WAYS[way], more
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
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=clean_environment(self.folder) | {MARK: self.mark} | dict(self.more),
            )  # fmt: skip
        self.started.append(one)

    def end(self) -> None:
        """Leave nothing of it."""
        end_marked(self.mark)
        for one in self.started:
            one.wait(20)


@contextmanager
def store(hosts: Mapping[str, NetworkHost], folder: Path, way: str) -> Iterator[None]:
    """What this way of rendezvous needs: a real etcd on the first host, with the interface that torchrun speaks (etcd up to 3.5 has it)."""
    if way != "etcd":
        yield
        return
    if shutil.which("etcd") is None or find_spec("etcd") is None:
        missing("needs etcd (Debian: etcd-server) and the package python-etcd")
    here, peers = f"http://{hosts['n1'].address}:{ETCD}", f"http://{hosts['n1'].address}:2380"
    command = ["etcd", "--enable-v2", "--data-dir", str(folder / "etcd"), "--listen-client-urls", here, "--advertise-client-urls", here,
               "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]  # fmt: skip
    with (folder / "etcd.log").open("ab") as log:
        server = subprocess.Popen(hosts["n1"].inside(*command), stdout=log, stderr=log)
    try:
        wait_for(
            "etcd",
            lambda: b"ready to serve client requests" in (folder / "etcd.log").read_bytes(),
            30,
        )
        yield
    finally:
        server.kill()
        server.wait(20)


def sentence(agent: WaitingAgent) -> str:
    run = agent.waiting()
    return run["sentence"] if run else ""


def reports(found: Mapping[str, WaitingAgent]) -> list[Report]:
    """Those of incidents, not what somebody asked for by hand."""
    everything = (one for agent in found.values() for one in agent.reports())
    return [one for one in everything if not one["id"].endswith("-manual")]


@pytest.mark.parametrize(
    ("way", "more", "absent"),
    [*((way, {}, "") for way in WAYS), ("static", OF_SLURM, "; missing: n3")],
    ids=[*WAYS, "static, in a job of Slurm"],
)
def test_two_of_three_nodes_are_counted_together_and_told_once(
    hosts: dict[str, NetworkHost], tmp_path: Path, way: str, more: dict[str, str], absent: str
) -> None:
    """`absent`: what is said of hosts by name, which only a scheduler knows; where it can be one alone, that is named."""
    with ExitStack() as stack:
        found = stack.enter_context(agents(hosts, tmp_path))
        stack.enter_context(store(hosts, tmp_path, way))
        launch = Launch(hosts, tmp_path, way, more)
        stack.callback(launch.end)
        try:
            launch.on("n1")
            wait_for("the first", lambda: sentence(found["n1"]).startswith("waits for nodes, 1 of 3 present (n1) since "), 90)  # fmt: skip
            launch.on("n2")
            for name in ("n1", "n2"):
                here = found[name]
                wait_for(f"both, seen on {name}", lambda one=here: sentence(one).startswith("waits for nodes, 2 of 3 present (n[1-2]) since "), 90)  # fmt: skip
            assert sentence(found["n3"]) == ""
            assert sentence(found["n1"]).endswith(absent)

            wait_for("the report", lambda: reports(found), INIT + 60)
            (report,) = reports(found)
            assert report["diagnosis"]["verdict"] == "init_incomplete"
            named = [(one["kind"], one["node"]) for one in report["diagnosis"]["culprits"]]
            assert named == ([("node", "n3")] if absent else [])
            assert "2 of 3 present" in report["diagnosis"]["summary"]
            assert absent in report["diagnosis"]["summary"]
            assert any("its stack" in line for line in report["diagnosis"]["evidence"])
            dumped = found["n2"].dump(flags=("--json",))
            assert dumped["diagnosis"]["verdict"] == "init_incomplete"

            launch.on("n3")
            for name, agent in found.items():
                wait_for(f"the rank on {name}", agent.trains, 120)
            wait_for("its end", lambda: reports(found)[0]["state"] == "recovered", 60)
            assert [one["id"] for one in reports(found)] == [report["id"]]
            assert [sentence(one) for one in found.values()] == ["", "", ""]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(found)}") from None
