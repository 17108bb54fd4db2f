"""A hub and agents as processes: killed at any moment, away for a while, in the hands of somebody else; every event is stored once."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from mldebug.fleet.answers.lemons import LemonList
from mldebug.fleet.batches import PATH, BatchAnswer, packed
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.errors import RefusedError
from mldebug_agents.cluster.peers.net.identity import derive, identity
from processes.harness import SCRIPTS, clean_environment, free_port, wait_for
from shared.fleet.fleet_events import fault

pytestmark = [pytest.mark.timeout(300)]
TESTS = Path(__file__).parents[2]
KEY = "0123456789abcdef" * 4
KILLS = int(os.environ.get("MLDEBUG_KILL_ROUNDS", "30"))
EACH = 300  # faults of one node
NODES = ("n1", "n2")


class Processes:
    """A hub and senders, each of which may be killed and begun anew."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.key = folder / "key"
        self.key.write_text(KEY)
        self.key.chmod(0o600)
        self.config = folder / "hub.yaml"
        self.config.write_text(
            f"agent: {{state_dir: {folder}/state, listen: ''}}\n"
            f"hub: {{listen: '127.0.0.1:{self.port}', pages: '', key_file: {self.key}}}\n"
        )
        self.living: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """`hub`, or a node."""
        argv = [str(SCRIPTS / "mldebug"), "hub", "--config", str(self.config)]
        if name != "hub":
            sender = Path(__file__).with_name("fleet_sender.py")
            hub = f"https://127.0.0.1:{self.port}"
            argv = [sys.executable, str(sender), str(self.folder / name), hub, str(self.key), name, str(EACH)]  # fmt: skip
        roots = os.pathsep.join(str(one) for one in (TESTS.parent, TESTS, TESTS.parent / "agents"))
        environ = clean_environment(self.folder) | {"PYTHONPATH": roots}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.living[name] = subprocess.Popen(argv, stdout=log, stderr=log, env=environ)

    def kill(self, name: str) -> None:
        process = self.living.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def says(self, node: str) -> list[str]:
        """How many events wait in the node that was begun last: `waiting 4` or `begins with 4` in two; nothing before it says so."""
        last = self.log(node).rpartition("up\n")[2]
        lines = [
            line.rsplit(maxsplit=1)
            for line in last.splitlines()
            if line.startswith(("waiting", "begins with"))
        ]
        return lines[-1] if lines else []

    def rows(self) -> list[tuple[str, str]]:
        """Node and subject of each stored event; none before there is a database."""
        with suppress(sqlite3.OperationalError):
            link = sqlite3.connect(f"file:{self.folder}/state/hub/hub.sqlite?mode=ro", uri=True)
            try:
                return link.execute("SELECT node, json_extract(CAST(body AS TEXT), '$.subject') FROM events").fetchall()  # fmt: skip
            finally:
                link.close()
        return []

    def ask(self, *words: str) -> "subprocess.CompletedProcess[str]":
        argv = [str(SCRIPTS / "mldebug"), *words, "--config", str(self.config)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=clean_environment(self.folder))  # fmt: skip

    def wait_for_the_hub(self) -> None:
        wait_for("the hub", lambda: self.ask("lemons").returncode == 0, 60)

    def end(self) -> None:
        for name in list(self.living):
            self.kill(name)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.end()


def test_every_event_is_stored_once_whoever_is_killed_and_when(processes: Processes) -> None:
    everybody = ("hub", *NODES)
    chance = random.Random(os.getpid())
    for name in everybody:
        processes.start(name)
    for kill in range(KILLS):
        time.sleep(chance.uniform(0.0, 1.5))
        name = everybody[kill % 3]
        processes.kill(name)
        time.sleep(chance.uniform(0.0, 0.3))
        processes.start(name)
    wait_for("all events", lambda: len(processes.rows()) >= EACH * len(NODES), 120)
    # one that was killed once all was sent says no more than that it begins with nothing
    wait_for("empty outboxes", lambda: all(processes.says(node)[1:] == ["0"] for node in NODES), 60)
    rows = processes.rows()
    assert len(rows) == len(set(rows)) == EACH * len(NODES)


def test_while_the_hub_is_away_events_wait_and_then_come_all(processes: Processes) -> None:
    processes.start("n1")
    wait_for("the sender", lambda: "up" in processes.log("n1"), 60)
    time.sleep(4.0)  # all faults have been offered meanwhile, to nobody
    assert processes.rows() == []
    processes.start("hub")
    wait_for("all events", lambda: len(processes.rows()) == EACH, 60)

    def lemons() -> list[str]:
        found = msgspec.json.decode(processes.ask("lemons", "--json").stdout, type=LemonList)
        return [one.node for one in found.nodes]

    # the list is made anew each few seconds: the hub's own metrics had it made before the events came
    wait_for("the lemon", lambda: lemons() == ["n1"], 30)


def test_a_hub_answers_on_its_machine_and_says_where_there_is_none(processes: Processes) -> None:
    none = processes.ask("lemons")
    assert (none.returncode, "no hub answers" in none.stderr) == (3, True)
    processes.start("hub")
    processes.wait_for_the_hub()
    unknown = processes.ask("retry-advice", "nothing")
    assert (unknown.returncode, "no job 'nothing'" in unknown.stderr) == (2, True)
    assert processes.ask("lemons", "--slurm-exclude").stdout == "\n"


def test_an_agent_in_other_hands_harms_nobody(processes: Processes) -> None:
    """It has the key. Garbage, floods and futures cost it its own events; the hub answers others meanwhile."""
    processes.start("hub")
    processes.wait_for_the_hub()
    client = PeerClient(identity(processes.key, derive))
    to = Peer("127.0.0.1", processes.port)

    def send(body: bytes) -> BatchAnswer:
        answer = client.ask(to, PATH, body, timeout=60.0, most=1 << 20)
        return msgspec.json.decode(answer, type=BatchAnswer)

    bad = [b"", os.urandom(1000), b"[" * 100_000, b" " * 2_000_000, b'{"node":"bad","events":[7]}']
    with ThreadPoolExecutor(8) as pool:
        for body in bad * 10:
            pool.submit(send, body)
        good = send(packed("n1", "1", [fault("n1", time.time() - 60)], {}))
    assert good.stored == 1
    future = packed("bad", "1", [fault("bad", time.time() + 86400)], {})
    assert send(future).troubles[0].reason == "future"
    other = packed("bad", "1", [fault("n1", time.time())], {})
    assert send(other).troubles[0].reason == "name"
    with pytest.raises(RefusedError, match="malformed"):
        send(b"{")
    assert [node for node, _ in processes.rows()] == ["n1"]
    assert "is ahead" in processes.log("hub") or "ahead of the hub's clock" in processes.log("hub")
