"""Events into a hub: simulated agents send batches over TLS, each with a connection of its own, while somebody asks for lemons each second.

python tests/bench/hub.py [SECONDS]. Hub and senders share this machine's cores. With the hub's burst of one node in mind there are
many nodes, and each sends no more than it may.
"""

import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.table import Row, show
from mldebug.fleet.batches import MAX_ANSWER, PATH, BatchAnswer, packed
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.identity import derive, identity
from processes.harness import SCRIPTS, clean_environment, free_port, wait_for
from shared.fleet.fleet_events import incident

SECONDS, SENDERS, EACH = 30.0, 4, 50  # EACH: events of a batch
BUDGET = 2000  # events a second
NODES = 1000  # of one sender


def send(key: Path, port: int, number: int, seconds: float, counts: Any) -> None:
    """What many agents send, one batch after another."""
    client, to = PeerClient(identity(key, derive)), Peer("127.0.0.1", port)
    until, stored, batch = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        node = f"n{number}-{batch % NODES}"
        events = [incident(f"i{batch}-{each}", node, at=time.time(), since=time.time()) for each in range(EACH)]  # fmt: skip
        answer = client.ask(to, PATH, packed(node, "1", events, {}), timeout=60, most=MAX_ANSWER)
        stored += msgspec.json.decode(answer, type=BatchAnswer).stored
        batch += 1
    counts.put(stored)


def measure(folder: Path, seconds: float) -> tuple[float, float, float]:
    """Events a second, the slowest answer about lemons in seconds, and CPU seconds of the hub for 1,000 events with these answers."""
    key, port = folder / "key", free_port()
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    config = folder / "hub.yaml"
    config.write_text(
        f"agent: {{state_dir: {folder}/state, listen: ''}}\n"
        f"hub: {{listen: '127.0.0.1:{port}', pages: '', key_file: {key}}}\n"
    )
    mldebug, environ = str(SCRIPTS / "mldebug"), clean_environment(folder)
    ask = [mldebug, "lemons", "--config", str(config)]
    hub = subprocess.Popen([mldebug, "hub", "--config", str(config)], env=environ, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        wait_for("the hub", lambda: subprocess.run(ask, env=environ, capture_output=True, check=False).returncode == 0)  # fmt: skip
        counts: Any = multiprocessing.Queue()
        senders = [multiprocessing.Process(target=send, args=(key, port, each, seconds, counts)) for each in range(SENDERS)]  # fmt: skip
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
    with tempfile.TemporaryDirectory() as folder:
        rate, slowest, cost = measure(Path(folder), seconds)
    rows = [
        Row("events into a hub, each second", f"{rate:,.0f}", f">= {BUDGET:,}", rate >= BUDGET),
        Row("CPU of the hub for 1,000 events, answers included", f"{cost:.2f} s"),
        Row("`mldebug lemons` meanwhile, the slowest", f"{slowest:.1f} s", "", None),
    ]
    show(f"hub: {SENDERS} senders, batches of {EACH}, {seconds:g} s", rows)


if __name__ == "__main__":
    main()
