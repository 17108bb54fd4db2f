"""Agents on three hosts with networks of their own, and a real gloo job of six ranks across them."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakenvml.library import FakeNvml
from processes.harness import JOBS, SCRIPTS, clean_environment, wait_for
from shared.system.patience import PATIENCE
from system.hosts import job_on
from system.launching import need
from system.networks import NetworkHost, network
from system.sites import Site

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(400)]
NAMES = ("n1", "n2", "n3")
KEY = "0123456789abcdef" * 4
STRIKE = 280.0

Report = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def root() -> None:
    """Hosts are namespaces."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("unshare", "nsenter", "ip")


@pytest.fixture
def hosts() -> Iterator[dict[str, NetworkHost]]:
    with network(NAMES) as found:
        yield found


class Agent:
    """An agent on a host."""

    stall = "{timeout: 8s, interval: 1s}"

    def __init__(
        self,
        host: NetworkHost,
        folder: Path,
        key: str,
        peers: str,
        listen: str,
        proof: str = "",
        environ: Mapping[str, str] = {},
    ) -> None:
        self.host = host
        self.folder = folder / host.name
        self.folder.mkdir(parents=True)
        file = self.folder / "key"
        file.write_text(key)
        file.chmod(0o600)
        self.config = self.folder / "mldebug.yaml"
        self.config.write_text(
            f"agent: {{state_dir: {self.folder}/state, listen: ''}}\n"
            f"stall: {self.stall}\n"
            f"cluster: {{{proof or f'key_file: {file}'}, peers: [{peers}], networks: [10.77.0.0/24, 127.0.0.0/8], interval: 1s,"
            f" listen: '{listen}'}}\n"
        )
        argv = [str(SCRIPTS / "mldebug"), "agent", "--config", str(self.config)]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                host.inside(*argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=clean_environment(self.folder) | dict(environ), start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def reports(self) -> list[Report]:
        files = sorted(self.folder.glob("state/reports/[!.]*/report.json"))
        return [json.loads(file.read_text()) for file in files]

    def dump(self, *more: str, flags: Sequence[str] = ("--json", "--cluster")) -> Report:
        """Of all nodes, asked here."""
        done = self._run("dump", *flags, *more)
        assert done.stdout, done.stderr  # an error has code 1, too
        report: Report = json.loads(done.stdout)
        return report

    def refusal(self, *more: str) -> str:
        """What a dump of all nodes says that cannot be."""
        done = self._run("dump", "--json", "--cluster", *more)
        assert done.stdout == ""
        return done.stderr

    def _run(self, verb: str, *more: str) -> "subprocess.CompletedProcess[str]":
        argv = [str(SCRIPTS / "mldebug"), verb, *more, "--config", str(self.config)]
        return subprocess.run(
            self.host.inside(*argv), check=False, capture_output=True, text=True, timeout=90,
            env=clean_environment(self.folder),
        )  # fmt: skip

    def text(self, *words: str) -> str:
        """What a command says."""
        done = self._run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, *more: str) -> dict[str, Any]:
        done = self._run("status", "--json", *more)
        assert done.stdout, done.stderr  # an error has code 1, too
        table: dict[str, Any] = json.loads(done.stdout)
        return table


@contextmanager
def agents(
    hosts: Mapping[str, NetworkHost],
    folder: Path,
    peers: str = "'n[1-3]'",
    keys: Mapping[str, str] = {},
    listen: Mapping[str, str] = {},
    proofs: Mapping[str, str] = {},
    environ: Mapping[str, Mapping[str, str]] = {},
    alone: Collection[str] = (),
) -> Iterator[dict[str, Agent]]:
    """One on each host; the first of the `peers` coordinates and all know it, unless there are no `peers` or they stay `alone`.

    Their hosts end them.
    """
    found = {
        name: Agent(
            *(host, folder, keys.get(name, KEY), peers, listen.get(name, "0.0.0.0:9754")),
            *(proofs.get(name, ""), environ.get(name, {})),
        )
        for name, host in hosts.items()
    }
    try:
        for name, agent in found.items():
            if peers and name not in keys and name not in alone:
                wait_for(f"{name} to follow the first", lambda one=agent: follows(one, peers), 60)
        yield found
    finally:
        for agent in found.values():
            agent.process.kill()
            agent.process.wait(10)


def follows(agent: Agent, peers: str) -> bool:
    """Whether the first of these peers is the last of which this agent has said that it coordinates: who starts first does so itself for a
    moment.
    """
    first = peers.strip("'").split(",")[0].replace("[1-3]", "1")
    lines = [line for line in agent.log.splitlines() if "coordinates" in line]
    words = "this agent coordinates" if agent.host.name == first else f"{first} coordinates"
    return bool(lines) and words in lines[-1]


@contextmanager
def python_on(host: NetworkHost, code: str) -> Iterator[None]:
    """A program on that host for as long as this lasts."""
    child = subprocess.Popen(host.inside(sys.executable, "-c", code))
    try:
        yield
    finally:
        child.kill()
        child.wait(10)


def named(report: Report) -> list[tuple[int | None, str]]:
    return [(one["rank"], one["node"]) for one in report["diagnosis"]["culprits"]]


def states(report: Report) -> dict[str, str]:
    return {one["node"]: one["state"] for one in report["nodes"]}


def ids(found: Mapping[str, Agent]) -> set[str]:
    return {report["id"] for agent in found.values() for report in agent.reports()}


def whole(agent: Agent, nodes: int = 3) -> Report | None:
    """Its report over all nodes."""
    return next((one for one in agent.reports() if len(one["nodes"]) == nodes), None)


def logs_of(found: Mapping[str, Agent]) -> str:
    return "\n".join(f"--- {name}\n{agent.log[-3000:]}" for name, agent in found.items())


def test_one_stall_is_captured_everywhere_and_told_once(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        lag = Lag()
        try:
            wait_for("the report over all nodes", lambda: lag.observed() and whole(found["n1"]), 60)
            members = (found["n2"], found["n3"])
            wait_for("all to know of it", lambda: all(map(knows, members)), 20)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(found)}") from None
        report = whole(found["n1"])
        assert report is not None
        assert named(report) == [(3, "n2")], report["diagnosis"]
        assert report["diagnosis"]["verdict"] == "rank_waiting"
        assert states(report) == dict.fromkeys(NAMES, "answered")
        assert {one["node"]: one["ranks"] for one in report["nodes"]} == {
            "n1": "0-1",
            "n2": "2-3",
            "n3": "4-5",
        }
        assert ids(found) == {report["id"]}, logs_of(found)
        assert spread(report) < 1.0 * PATIENCE + 10 * lag.longest
        counts = [one.status()["agent"].get("incidents", {}) for one in found.values()]
        assert counts == [{"stall/rank_waiting": 1}, {}, {}]  # where the report is
        for agent in members:
            (own,) = agent.reports()
            assert own["diagnosis"]["summary"] == report["diagnosis"]["summary"]
            assert list((agent.folder / "state/reports" / own["id"] / "evidence").glob("capture*"))


class Lag:
    """By how much this machine is late: on a crowded one nothing happens within a second."""

    def __init__(self) -> None:
        self.longest = 0.0

    def observed(self) -> bool:
        """Sleep for a moment; how much longer did it take?"""
        began = time.monotonic()
        time.sleep(0.01)
        self.longest = max(self.longest, time.monotonic() - began - 0.01)
        return True


def stepped(events: Path, least: int) -> bool:
    """Have all six ranks come so far?"""
    files = [events / f"step.{rank}" for rank in range(6)]
    return all(one.exists() and int(one.read_text() or 0) >= least for one in files)


def step_of(events: Path) -> int:
    """The step that the furthest rank has come to."""
    return max(int((events / f"step.{rank}").read_text() or 0) for rank in range(6))


def knows(agent: Agent) -> bool:
    """Has it written down what all nodes have come to?"""
    return any(
        "all nodes together" in event["what"]
        for one in agent.reports()
        for event in one["timeline"]
    )


def spread(report: Report) -> float:
    """Seconds within which all nodes were captured, by the coordinator's clock."""
    (words,) = [one["what"] for one in report["timeline"] if "all within" in one["what"]]
    return float(words.rpartition("within ")[2].split()[0])


RANKS = [("n1", "0-1"), ("n2", "2-3"), ("n3", "4-5")]


def ranks_known(agent: Agent) -> list[tuple[str, str]]:
    """The nodes that have announced themselves to the coordinator, as this agent is told, each with the ranks of its first run."""
    members = agent.status("--cluster")["members"]
    return [(one["node"], run["ranks"]) for one in members for run in one["runs"][:1]]


def test_any_node_knows_of_all(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:
    """Nothing is wrong: nobody says so, and whoever asks gets an answer on any node."""
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2) as events,
    ):
        wait_for("the job to step", lambda: stepped(events, 20), STRIKE)
        wait_for("the coordinator to know of all ranks", lambda: ranks_known(found["n3"]) == RANKS, 30)  # fmt: skip
        assert found["n3"].status("--cluster")["coordinator"] == "n1"
        report = found["n2"].dump("--job", "train.py", flags=("--json",))
        assert states(report) == dict.fromkeys(NAMES, "answered")
        assert [rank["rank"] for rank in report["ranks"]] == list(range(6))
        assert report["kind"] == "manual"
        assert named(report) == [], report["diagnosis"]
        assert ids(found) == {report["id"]}
        assert "no runs match nosuch" in found["n2"].refusal("--job", "nosuch")


def test_gpus_and_top_show_all_nodes_as_the_agents_know_them(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """Two nodes have a library that serves recordings of two H200s, and the third one has none. No ssh is asked."""
    libraries = {}
    for name in NAMES[:2]:
        (tmp_path / f"nvml-{name}").mkdir()
        fake = FakeNvml(tmp_path / f"nvml-{name}", "training")
        libraries[name] = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}
    with (
        agents(hosts, tmp_path, environ=libraries) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2) as events,
    ):
        wait_for("the job to step", lambda: stepped(events, 20), STRIKE)
        wait_for("all ranks to be known", lambda: ranks_known(found["n3"]) == RANKS, 30)
        gpus = wait_for("all GPUs", lambda: of_all(found["n3"].text("gpus", "list", "--cluster"), "4 GPUs"), 30)  # fmt: skip
        screen = found["n2"].text("top", "--once", "--cluster")
        answer = json.loads(found["n1"].text("top", "--json", "--cluster"))
    assert gpus.startswith("3 nodes (n[1-3]): 4 GPUs, nothing wrong with them\n")
    assert "n[1-2]  2 x NVIDIA H200 fine\n" in gpus
    assert re.search(r"train\.py +\S+ +n\[1-3\] +0-5 of 6 +\d+ ", screen), screen
    assert re.search(r"(?m)^n2 +1 +\S+ +\d+ % +\d+/\d+ GiB ", screen), screen
    assert {one["node"]: len(one.get("gpus", ())) for one in answer["answers"]} == {"n1": 2, "n2": 2, "n3": 0}  # fmt: skip


def of_all(text: str, words: str) -> str:
    return text if words in text else ""


def test_a_host_that_is_cut_off_is_told_of(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2) as events,
    ):
        wait_for("the job to step", lambda: stepped(events, 20), STRIKE)
        # who was cut off before he could announce his ranks is a stranger
        wait_for("the coordinator to know of all ranks", lambda: ranks_known(found["n1"]) == RANKS, 30)  # fmt: skip
        more = (
            step_of(events) + 1
        )  # it is quiet from the cut on, and not since the machine was busy
        wait_for("one more step", lambda: stepped(events, more), STRIKE)
        hosts["n3"].link("down")
        try:
            wait_for("the report over all nodes", lambda: whole(found["n1"]), 90)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(found)}") from None
        report = whole(found["n1"])
        assert report is not None
        assert states(report) == {"n1": "answered", "n2": "answered", "n3": "silent"}
        assert report["diagnosis"]["verdict"] == "node_unreachable", report["diagnosis"]
        assert named(report) == [(None, "n3")]
        assert report["diagnosis"]["confidence"] == "medium"
        assert next(one["last_seen"] for one in report["nodes"] if one["node"] == "n3")
        wait_for("n3 to report alone", lambda: found["n3"].reports(), 60)
        assert not [one for report in found["n3"].reports() for one in named(report)]


def test_an_agent_that_comes_later_has_the_same_incident(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    early = {name: hosts[name] for name in ("n1", "n2")}
    with (
        agents(early, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        wait_for("the report of those who are there", lambda: whole(found["n1"]), 90)
        with agents({"n3": hosts["n3"]}, tmp_path) as late:
            everybody = {**found, **late}
            try:
                wait_for("n3 to report, too", lambda: late["n3"].reports(), 90)
                wait_for("one id", lambda: len(ids(everybody)) == 1, 20)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{logs_of(everybody)}") from None
        report = whole(found["n1"])
        assert report is not None
        assert named(report) == [(3, "n2")]
        assert "n3" in states(report)


def test_an_agent_with_another_key_is_told_nothing(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    with (
        agents(hosts, tmp_path, keys={"n3": KEY[::-1]}) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        try:
            wait_for("the report of those who have the key", lambda: whole(found["n1"]), 60)
            wait_for("n3 to report alone", lambda: whole(found["n3"]), 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(found)}") from None
        (report,) = found["n1"].reports()
        assert states(report) == {"n1": "answered", "n2": "answered", "n3": "unable"}
        assert named(report) == [(3, "n2")], report["diagnosis"]
        assert report["diagnosis"]["confidence"] == "low"
        (alone,) = found["n3"].reports()
        assert states(alone)["n3"] == "answered"
        assert named(alone) == []
        assert "does not have the same key" in found["n3"].log


def test_the_coordinator_dies_while_all_are_captured(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """Its host loses its power, the two ranks there too: no connection ends, the others wait on, and go on under one id."""
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        wait_for("all to be asked", lambda: "asking 3 nodes" in found["n1"].log, 60)
        hosts["n1"].link("down")
        hosts["n1"].process.kill()
        living = {name: found[name] for name in ("n2", "n3")}
        try:
            wait_for(
                "another one to coordinate", lambda: "this agent coordinates" in found["n2"].log, 60
            )
            wait_for("a report of those who live", lambda: whole(found["n2"]), 60)
            wait_for("n3 to have its own", lambda: found["n3"].reports(), 30)
            wait_for("one id", lambda: len(ids(living)) == 1, 30)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{ids(living)}\n{logs_of(found)}") from None
        report = whole(found["n2"])
        assert report is not None
        assert states(report) == {"n1": "silent", "n2": "answered", "n3": "answered"}
        assert named(report) == [(3, "n2")], report["diagnosis"]
        assert report["diagnosis"]["confidence"] == "low"


def test_who_was_cut_off_comes_back_to_the_same_incident(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        hosts["n3"].link("down")
        try:
            wait_for("n1 to report", lambda: whole(found["n1"]), 60)
            wait_for("n3 to report alone", lambda: found["n3"].reports(), 60)
            assert len(ids(found)) == 2
            hosts["n3"].link("up")
            wait_for("one id", lambda: len(ids(found)) == 1, 60)
            wait_for("n3 to know", lambda: knows(found["n3"]), 20)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{ids(found)}\n{logs_of(found)}") from None
        first = whole(found["n1"])
        assert first is not None
        (own,) = found["n3"].reports()
        assert (own["id"], own["diagnosis"]["summary"]) == (
            first["id"],
            first["diagnosis"]["summary"],
        )


def test_progress_that_one_node_sees_is_known_on_all(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """Only rank 0 writes a log: the other nodes judge by it all the same, and tell nothing while it grows."""
    options = ("--fault", "sleep", "--ranks", "3", "--after", "150", "--pace", "0.1")
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options, first_alone=True) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        assert ids(found) == set(), logs_of(found)
        try:
            wait_for("the report over all nodes", lambda: whole(found["n1"]), 60)
            wait_for("one id", lambda: len(ids(found)) == 1, 20)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(found)}") from None
        assert named(whole(found["n1"]) or {}) == [(3, "n2")]
        assert "stalled: no step for" in found["n2"].log  # by the steps that n1 has told


def test_what_an_idle_agent_of_three_costs(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:
    """DESIGN's budget for the watch holds with others, too: announcements are a handshake a second here."""
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, "--pace", "0.5") as events,
    ):
        wait_for("the job to step", lambda: stepped(events, 10), STRIKE)
        before = found["n1"].status()["agent"]
        time.sleep(20)  # what is measured is a span
        after = found["n1"].status()["agent"]
        cpu = (after["cpu_seconds"] - before["cpu_seconds"]) / (after["at"] - before["at"])
        print(f"coordinator: {cpu:.2%} of a core, {after['rss_bytes'] / 2**20:.0f} MiB")
        assert after["rss_bytes"] < 80 << 20


def test_a_coordinator_that_has_no_rank_reports_too(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """A login node: the job runs on the two others."""
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    with agents(hosts, tmp_path, "n3, n1, n2") as found:
        with job_on([hosts["n1"], hosts["n2"]], tmp_path / "job", 2, *options) as events:
            wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
            try:
                wait_for("the report", lambda: found["n3"].reports(), 60)
                wait_for("n1 to know", lambda: knows(found["n1"]), 20)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{logs_of(found)}") from None
            (report,) = found["n3"].reports()
            assert named(report) == [(3, "n2")]
            assert (report["node"], report["state"]) == ("n3", "open")
            assert ids(found) == {report["id"]}, logs_of(found)
        wait_for("its end", lambda: found["n3"].reports()[0]["state"] == "ended", 60)


MUTE = "import socket, time; s = socket.create_server(('10.77.0.3', 9754)); time.sleep(600)"


def test_who_cannot_be_asked_and_is_alive_is_not_blamed(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """n3 announces itself, and what the others reach at its port is silent: that is no dead node."""
    options = ("--fault", "sleep", "--ranks", "5", "--after", "5")
    with (
        python_on(hosts["n3"], MUTE),
        agents(hosts, tmp_path, listen={"n3": "127.0.0.1:9754"}) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 5 to sleep", (events / "strike.5").exists, STRIKE)
        wait_for("the report", lambda: whole(found["n1"]), 60)
        report = whole(found["n1"])
        assert report is not None
        assert states(report)["n3"] == "unable", report["nodes"]
        assert "it has announced itself" in next(
            one["reason"] for one in report["nodes"] if one["node"] == "n3"
        )
        assert report["diagnosis"]["verdict"] == "unknown", report["diagnosis"]


def test_two_jobs_on_overlapping_hosts_have_a_coordinator_each(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """No peers: one job tells its nodes as Slurm does, the other its master alone."""
    sleeps = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    first, second = [hosts["n1"], hosts["n2"]], [hosts["n2"], hosts["n3"]]
    slurm = {"SLURM_JOB_NODELIST": "n[2-3]"}
    with (
        agents(hosts, tmp_path, "") as found,
        job_on(first, tmp_path / "a", 2, master="n1") as _,
        job_on(second, tmp_path / "b", 2, *sleeps, master="n2", environ=slurm) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        try:
            wait_for("the report over both nodes", lambda: whole(found["n2"], 2), 60)
            wait_for("n3 to know", lambda: knows(found["n3"]), 20)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(found)}") from None
        report = whole(found["n2"], 2)
        assert report is not None
        assert named(report) == [(3, "n3")], report["diagnosis"]
        assert states(report) == {"n2": "answered", "n3": "answered"}
        assert ids(found) == {report["id"]}, logs_of(found)
        assert found["n1"].reports() == []
        view = found["n2"].status("--cluster")
        assert [one["node"] for one in view["members"]] == ["n1", "n2", "n3"]


def test_a_crash_and_the_hang_that_follows_are_one_incident(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """Rank 3 dies on n2, and its sockets stay open: all others wait for it."""
    options = ("--fault", "crashed", "--ranks", "3", "--after", "5")
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to crash", (events / "strike.3").exists, STRIKE)
        try:
            wait_for("n2 to tell of the crash", lambda: found["n2"].reports(), 60)
            wait_for("the report over all nodes", lambda: whole(found["n1"]), 60)
            wait_for("one id", lambda: len(ids(found)) == 1, 30)
            wait_for("n3 to know", lambda: knows(found["n3"]), 30)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{ids(found)}\n{logs_of(found)}") from None
        report = whole(found["n1"])
        assert report is not None
        assert named(report) == [(3, "n2")], report["diagnosis"]
        assert report["diagnosis"]["verdict"] == "rank_exited"
        (own,) = found["n2"].reports()
        assert (own["kind"], named(own)) == ("abnormal_end", [(3, "n2")])


def test_who_does_not_reach_the_coordinator_is_in_the_same_incident(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """n1 and n3 do not see each other; n2 sees both, and speaks for n3."""
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        hosts["n3"].part(hosts["n1"])
        try:
            wait_for("the report over all nodes", lambda: whole(found["n1"]), 90)
            wait_for("n3 to report", lambda: found["n3"].reports(), 60)
            wait_for("one id", lambda: len(ids(found)) == 1, 60)
            wait_for("n3 to know", lambda: knows(found["n3"]), 30)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{ids(found)}\n{logs_of(found)}") from None
        report = whole(found["n1"])
        assert report is not None
        assert states(report) == {"n1": "answered", "n2": "answered", "n3": "unable"}, logs_of(
            found
        )
        assert named(report) == [(3, "n2")], report["diagnosis"]
        assert "n1 coordinates, by way of n2" in found["n3"].log


def test_a_slow_link_is_waited_for(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    hosts["n2"].shape("1mbit")
    with (
        agents(hosts, tmp_path) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        wait_for("the report over all nodes", lambda: whole(found["n1"]), 90)
        report = whole(found["n1"])
        assert report is not None
        assert named(report) == [(3, "n2")], report["diagnosis"]
        assert states(report) == dict.fromkeys(NAMES, "answered")


# what comes is 0.3 s late, both ways; every third connection is cut
RELAY = """
import asyncio
async def pump(reader, writer):
    while data := await reader.read(1 << 16):
        await asyncio.sleep(0.3)
        writer.write(data)
    writer.close()
count = 0
async def relay(reader, writer):
    global count
    count += 1
    if count % 3 == 0:
        writer.transport.abort()
        return
    inner, outer = await asyncio.open_connection("127.0.0.1", 9754)
    await asyncio.gather(pump(reader, outer), pump(inner, writer), return_exceptions=True)
async def main():
    await (await asyncio.start_server(relay, "10.77.0.3", 9754)).serve_forever()
asyncio.run(main())
"""


def test_latency_and_lost_connections_cost_nothing(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    """To n3, whose agent has a stall on a rank of its own."""
    options = ("--fault", "sleep", "--ranks", "5", "--after", "5")
    with (
        python_on(hosts["n3"], RELAY),
        agents(hosts, tmp_path, listen={"n3": "127.0.0.1:9754"}) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 5 to sleep", (events / "strike.5").exists, STRIKE)
        wait_for("the report over all nodes", lambda: whole(found["n1"]), 60)
        (report,) = found["n1"].reports()
        assert states(report) == dict.fromkeys(NAMES, "answered"), report["nodes"]
        assert named(report) == [(5, "n3")], report["diagnosis"]
        assert ids(found) == {report["id"]}, logs_of(found)
        for _ in range(4):  # so one of them at least is cut at first
            by_hand = found["n2"].dump("--job", "train.py")
            assert states(by_hand) == dict.fromkeys(NAMES, "answered"), by_hand["nodes"]


def test_a_node_whose_certificate_has_expired_is_told_so(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    site = Site(tmp_path / "site")
    for name in NAMES:
        site.node(name, hosts[name].address, until=-1 if name == "n3" else 30)
    files = "certificate: {0}/{1}.pem, key: {0}/{1}.key, ca: {0}/ca.pem"
    proofs = {name: files.format(site.folder, name) for name in NAMES}
    with (
        agents(hosts, tmp_path, proofs=proofs, alone=("n3",)) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        try:
            wait_for("the report of those who are let in", lambda: whole(found["n1"]), 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs_of(found)}") from None
        report = whole(found["n1"])
        assert report is not None
        assert states(report) == {"n1": "answered", "n2": "answered", "n3": "unable"}
        assert named(report) == [(3, "n2")], report["diagnosis"]
        assert "the certificate of this node: it has expired" in found["n3"].log
        for who in ("somebody", "n3"):  # who comes is not known by name before it has proved itself
            words = f"{who} is refused: its certificate has expired"
            assert found["n1"].log.count(words) == 1, found["n1"].log
        refused = found["n1"].status()["agent"]["cluster_refused"]
        assert refused["certificate"] > 0


def test_clocks_minutes_apart_change_nothing(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:
    need("gcc")
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    library = tmp_path / "another_clock.so"
    source = str(JOBS / "another_clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), source], check=True)
    fake = {"LD_PRELOAD": str(library)}
    clocks = {"n2": fake | {"AHEAD": "-1020"}, "n3": fake | {"AHEAD": "7200"}}
    with (
        agents(hosts, tmp_path, environ=clocks) as found,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)
        wait_for("the report over all nodes", lambda: whole(found["n1"]), 60)
        wait_for("all to know of it", lambda: all(map(knows, (found["n2"], found["n3"]))), 20)
        report = whole(found["n1"])
        assert report is not None
        assert named(report) == [(3, "n2")], f"{report['nodes']}\n{logs_of(found)}"
        assert ids(found) == {report["id"]}, logs_of(found)
        by_node = {one["node"]: one["taken_at"] for one in report["nodes"]}
        assert by_node["n2"] < by_node["n1"] < by_node["n3"]  # shown as they are
