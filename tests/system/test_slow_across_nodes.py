"""A slow rank of a real gloo job of four ranks on two hosts with networks and agents of their own."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mldebug.goodput.straggler import Slowness
from mldebug_agents.web.client import ask_agent
from processes.harness import SCRIPTS, clean_environment, wait_for
from system.hosts import job_on
from system.networks import NetworkHost, network
from system.test_peers import KEY, root

__all__ = ["root"]  # used by pytest: hosts are namespaces

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(600)]
NAMES = ("n1", "n2")


class SamplingAgent:
    """An agent on a host, which has stretches of samples taken every 10 s."""

    def __init__(self, host: NetworkHost, folder: Path) -> None:
        self.folder = folder / host.name
        self.folder.mkdir(parents=True)
        key = self.folder / "key"
        key.write_text(KEY)
        key.chmod(0o600)
        config = self.folder / "mldebug.yaml"
        config.write_text(
            f"agent: {{state_dir: {self.folder}/state, listen: ''}}\n"
            "stall: {timeout: 60s}\n"
            "goodput: {interval: 10s}\n"
            f"cluster: {{key_file: {key}, peers: ['n[1-2]'], networks: [10.77.0.0/24, 127.0.0.0/8], interval: 1s}}\n"
        )
        argv = [str(SCRIPTS / "mldebug"), "agent", "--config", str(config)]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                host.inside(*argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=clean_environment(self.folder), start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def slowdown(self) -> dict[str, Any] | None:
        """Its report of kind `slowdown`."""
        files = sorted(self.folder.glob("state/reports/[!.]*/report.json"))
        found = [json.loads(file.read_text()) for file in files]
        return next((one for one in found if one["kind"] == "slowdown"), None)

    def slowness(self) -> Slowness | None:
        """What it knows of how the ranks wait."""
        snapshot = ask_agent(self.folder / "state")
        runs = snapshot.runs if snapshot else ()
        return next((one.slowness for one in runs), None)


@contextmanager
def training_on_two_hosts(
    folder: Path, *options: str
) -> Iterator[tuple[Mapping[str, SamplingAgent], Path]]:
    """The job with two ranks on each host, and the agents there; yields them with the job's log."""
    with (
        network(NAMES) as hosts,
        job_on(list(hosts.values()), folder / "job", 2, *options, script="uneven.py") as events,
    ):
        log = events.parent / "job.log"
        wait_for("the first steps", lambda: b"step 10 " in log.read_bytes(), 200)
        found = {name: SamplingAgent(host, folder) for name, host in hosts.items()}
        try:
            yield found, log
        finally:
            for one in found.values():
                one.process.kill()
                one.process.wait(10)


def logs_of(found: Mapping[str, SamplingAgent]) -> str:
    return "\n".join(f"--- {name}\n{agent.log[-3000:]}" for name, agent in found.items())


def test_the_slow_rank_of_one_host_is_named_by_the_agent_there_alone(tmp_path: Path) -> None:
    fault = ("--fault", "sleep", "--extra", "0.15", "--rank", "2", "--pace", "0.3")
    with training_on_two_hosts(tmp_path, *fault) as (agents, log):
        try:
            report = wait_for("the report of n2", agents["n2"].slowdown, 300)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(agents)}") from None
        diagnosis = report["diagnosis"]
        assert [(one["rank"], one["node"]) for one in diagnosis["culprits"]] == [(2, "n2")]
        assert diagnosis["culprits"][0]["pid"]
        assert (diagnosis["verdict"], diagnosis["confidence"]) == ("straggler", "medium")
        assert "it stands idle in augment (uneven.py:" in diagnosis["summary"]
        wait_for("n1 to know it", lambda: (one := agents["n1"].slowness()) and one.ranks, 30)
        known = agents["n1"].slowness()
        assert known is not None
        assert [one.rank for one in known.ranks] == [2]
        assert [one.rank for one in known.shares] == [0, 1, 2, 3]
        assert agents["n1"].slowdown() is None
        steps = log.read_bytes().count(b"step ")
        wait_for("more steps", lambda: log.read_bytes().count(b"step ") > steps + 2, 60)


def test_a_healthy_job_on_two_hosts_names_nobody(tmp_path: Path) -> None:
    with training_on_two_hosts(tmp_path, "--pace", "0.3") as (agents, _):
        wait_for("a row on both hosts", lambda: all(a.slowness() for a in agents.values()), 300)
        for one in agents.values():
            found = one.slowness()
            assert found is not None
            assert len(found.shares) == 4
            assert not found.ranks
            assert one.slowdown() is None
