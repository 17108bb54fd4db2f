"""Two hubs on NATS and PostgreSQL, and agents: each of them is killed at any moment, and every event is stored once; one hub that dies leaves no gap."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from processes.harness import SCRIPTS, clean_environment, wait_for
from shared.fleet.nats_server import NatsServer
from shared.fleet.postgres import PostgresServer, temporary_server

pytestmark = [pytest.mark.timeout(400)]
TESTS = Path(__file__).parents[2]
KILLS = int(os.environ.get("MLDEBUG_KILL_ROUNDS", "30"))
EACH = 300  # faults of one node
NODES, HUBS = ("n1", "n2"), ("hub1", "hub2")


class FleetServers:
    """NATS, PostgreSQL, two hubs and two senders, each of which may be killed and begun anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nats = NatsServer(folder / "nats", NODES)
        self.postgres: PostgresServer = temporary_server()
        self.database = self.postgres.database("fleet")
        self.living: dict[str, subprocess.Popen[bytes]] = {}
        site = self.nats.site.folder
        for name in HUBS:
            (folder / f"{name}.yaml").write_text(
                f"agent: {{state_dir: {folder}/{name}, listen: ''}}\n"
                f"hub: {{nats: '{self.nats.address}', pages: '', database: '{self.database}', "
                f"certificate: {site}/hub.pem, key: {site}/hub.key, ca: {site}/ca.pem}}\n"
            )

    def start(self, name: str) -> None:
        """A server, a hub or a node."""
        if name == "nats":
            self.nats.start()
        elif name == "postgres":
            self.postgres.start()
        else:
            self._run(name)

    def _run(self, name: str) -> None:
        argv = [str(SCRIPTS / "mldebug"), "hub", "--config", str(self.folder / f"{name}.yaml")]
        if name in NODES:
            sender = Path(__file__).with_name("fleet_sender.py")
            argv = [sys.executable, str(sender), str(self.folder / name), self.nats.address, str(self.nats.site.folder), name, str(EACH)]  # fmt: skip
        roots = os.pathsep.join(str(one) for one in (TESTS.parent, TESTS, TESTS.parent / "agents"))
        environ = clean_environment(self.folder) | {"PYTHONPATH": roots}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.living[name] = subprocess.Popen(argv, stdout=log, stderr=log, env=environ)

    def kill(self, name: str) -> None:
        """With SIGKILL."""
        if name in ("nats", "postgres"):
            (self.nats if name == "nats" else self.postgres).kill()
        elif name in self.living:
            process = self.living.pop(name)
            process.send_signal(signal.SIGKILL)
            process.wait(30)

    def dead(self) -> list[str]:
        """Hubs that gave up: one that starts while PostgreSQL is away says so and ends, for its supervisor to start it again."""
        return [name for name, one in self.living.items() if one.poll() is not None]

    def rows(self) -> list[tuple[str, str]]:
        """Node and subject of each stored event; none while there are no tables."""
        try:
            with psycopg.connect(self.database, connect_timeout=5) as link:
                return [(str(node), str(subject)) for node, subject in link.execute("SELECT node, subject FROM events")]  # fmt: skip
        except psycopg.Error:
            return []

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait_for_all(self) -> None:
        """Until every event is stored; then that none is stored twice."""
        whole = EACH * len(NODES)
        try:
            wait_for("all events", lambda: self.revive() or len(self.rows()) >= whole, 180)
        except AssertionError:
            logs = "\n".join(f"{name}: {self.log(name)[-1500:]}" for name in (*HUBS, *NODES))
            raise AssertionError(f"{len(self.rows())} of {whole}\n{logs}") from None
        time.sleep(2.0)  # for what would be doubled
        rows = self.rows()
        assert len(rows) == len(set(rows)) == whole

    def revive(self) -> None:
        """Start hubs that gave up, as systemd does."""
        for name in self.dead():
            self._run(name)

    def end(self) -> None:
        for name in (*list(self.living), "nats"):
            self.kill(name)
        self.postgres.stop()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetServers]:
    made = FleetServers(tmp_path)
    yield made
    made.end()


def test_every_event_is_stored_once_whichever_server_is_killed_and_when(fleet: FleetServers) -> None:  # fmt: skip
    everybody = ("nats", *HUBS, *NODES, "postgres")
    chance = random.Random(os.getpid())
    for name in everybody[:-1]:  # PostgreSQL runs
        fleet.start(name)
    for kill in range(KILLS):
        time.sleep(chance.uniform(0.0, 1.5))
        name = everybody[kill % len(everybody)]
        fleet.kill(name)
        time.sleep(chance.uniform(0.0, 0.5))
        fleet.start(name)
        fleet.revive()
    fleet.wait_for_all()


def test_one_of_two_hubs_dies_and_nothing_waits_for_it(fleet: FleetServers) -> None:
    for name in ("nats", *HUBS, *NODES):
        fleet.start(name)
    wait_for("the first events", lambda: len(fleet.rows()) > 20, 60)
    fleet.kill("hub1")
    wanted = min(len(fleet.rows()) + 20, EACH * len(NODES))
    wait_for("more events", lambda: len(fleet.rows()) >= wanted, 20)
    fleet.wait_for_all()


def test_while_no_hub_lives_the_stream_keeps_all(fleet: FleetServers) -> None:
    fleet.start("nats")
    fleet.start("hub1")
    wait_for("the hub's tables", lambda: "takes events at" in fleet.log("hub1"), 60)
    fleet.start("n1")
    wait_for("the first events", fleet.rows, 60)
    fleet.kill("hub1")
    fleet.start("n2")
    wait_for("n2 to have sent all", lambda: fleet.log("n2").count("waiting 0"), 90)
    fleet.start("hub2")
    fleet.wait_for_all()
