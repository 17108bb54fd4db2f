"""Events into a hub: simulated agents send batches, each over a connection of its own, while somebody asks for lemons each second.

python tests/bench/hub.py [SECONDS [STORE [WAY]]]: STORE is sqlite (the default) or postgresql, WAY https or nats. Hub, senders, PostgreSQL and
nats-server share this machine's cores. With the hub's burst of one node in mind there are many nodes, and each sends no more than it may.
"""

import contextlib
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.table import Row, show
from mldebug.fleet.batches import packed
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.identity import derive, identity
from mldebug_agents.fleet.setup import HttpsClient, HubClient
from mldebug_agents.fleet.stream import tls_of
from mldebug_agents.fleet.stream_client import StreamClient
from processes.harness import SCRIPTS, clean_environment, free_port, wait_for
from shared.fleet.fleet_events import incident
from shared.fleet.nats_server import NatsServer
from shared.fleet.postgres import temporary_server

SECONDS, SENDERS, EACH = 30.0, 4, 50  # EACH: events of a batch
BUDGET = 2000  # events a second
NODES = 1000  # of one sender


class Place:
    """Where a hub takes events: its key and port, or a NATS server."""

    def __init__(self, folder: Path, way: str) -> None:
        self.key, self.port = folder / "key", free_port()
        self.key.write_text("0123456789abcdef" * 4)
        self.key.chmod(0o600)
        self.nats = NatsServer(folder / "nats", ()) if way == "nats" else None  # fmt: skip

    def lines(self) -> str:
        """Of the hub's config."""
        if self.nats is None:
            return f"listen: '127.0.0.1:{self.port}', key_file: {self.key}"
        site = self.nats.site.folder
        return f"nats: '{self.nats.address}', certificate: {site}/hub.pem, key: {site}/hub.key, ca: {site}/ca.pem"  # fmt: skip

    def client(self, node: str) -> HubClient:
        """Of one node."""
        if self.nats is None:
            return HttpsClient(Peer("127.0.0.1", self.port), PeerClient(identity(self.key, derive)))
        return StreamClient(node, self.nats.address, tls_of(self.nats.keys("anybody")))


def send(place: Place, number: int, seconds: float, counts: Any) -> None:
    """What many agents send, one batch after another."""
    until, stored, batch, client = time.monotonic() + seconds, 0, 0, None
    while time.monotonic() < until:
        node = f"n{number}-{batch % NODES}"
        client = client if client and not place.nats else place.client(node)
        events = [incident(f"i{batch}-{each}", node, at=time.time(), since=time.time()) for each in range(EACH)]  # fmt: skip
        stored += client.deliver(packed(node, "1", events, {})).stored
        batch += 1
    counts.put(stored)


def measure(folder: Path, seconds: float, place: Place, database: str) -> tuple[float, float, float]:  # fmt: skip
    """Events a second, the slowest answer about lemons in seconds, and CPU seconds of the hub for 1,000 events with these answers."""
    config = folder / "hub.yaml"
    config.write_text(
        f"agent: {{state_dir: {folder}/state, listen: ''}}\n"
        f"hub: {{pages: '', database: '{database}', {place.lines()}}}\n"
    )
    mldebug, environ = str(SCRIPTS / "mldebug"), clean_environment(folder)
    ask = [mldebug, "lemons", "--config", str(config)]
    hub = subprocess.Popen([mldebug, "hub", "--config", str(config)], env=environ, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        wait_for("the hub", lambda: subprocess.run(ask, env=environ, capture_output=True, check=False).returncode == 0)  # fmt: skip
        counts: Any = multiprocessing.Queue()
        senders = [multiprocessing.Process(target=send, args=(place, each, seconds, counts)) for each in range(SENDERS)]  # fmt: skip
        began, slowest = time.monotonic(), 0.0
        for one in senders:
            one.start()
        while time.monotonic() - began < seconds:
            before = time.monotonic()
            subprocess.run(ask, env=environ, capture_output=True, check=True)
            slowest = max(slowest, time.monotonic() - before)
            time.sleep(1.0)
        stored = sum(counts.get(timeout=120) for _ in senders)
        lasted = time.monotonic() - began
        used = psutil.Process(hub.pid).cpu_times()
        for one in senders:
            one.join(30)
    finally:
        hub.terminate()
        hub.wait(30)
    return stored / lasted, slowest, 1000 * (used.user + used.system) / stored


def main() -> None:
    """Measure, and show."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    store, way = (*sys.argv[2:4], "sqlite", "https")[:2] if len(sys.argv) != 3 else (sys.argv[2], "https")  # fmt: skip
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as servers:
        folder, database = Path(name), ""
        if store == "postgresql":
            postgres = temporary_server()
            servers.callback(postgres.stop)
            database = postgres.database("fleet")
        place = Place(folder, way)
        if place.nats is not None:
            place.nats.start()
            servers.callback(place.nats.kill)
        rate, slowest, cost = measure(folder, seconds, place, database)
    rows = [
        Row(
            f"events into a hub by {way} and {store}, each second",
            f"{rate:,.0f}",
            f">= {BUDGET:,}",
            rate >= BUDGET,
        ),
        Row("CPU of the hub for 1,000 events, answers included", f"{cost:.2f} s"),
        Row("`mldebug lemons` meanwhile, the slowest", f"{slowest:.1f} s", "", None),
    ]
    show(f"hub, {way}, {store}: {SENDERS} senders, batches of {EACH}, {seconds:g} s", rows)


if __name__ == "__main__":
    main()
