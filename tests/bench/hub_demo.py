"""`make hub-demo`: NATS, PostgreSQL, two hubs and ten simulated agents on this machine, and the page of the fleet, until Ctrl-C.

python tests/bench/hub_demo.py [SECONDS]. Needs nats-server and PostgreSQL (Debian: nats-server, postgresql); no root. Everything is in a temporary
folder and on loopback, and goes at the end.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from pathlib import Path

from mldebug.fleet.batches import packed
from mldebug.fleet.events import AnyEvent, FleetCulprit
from mldebug_agents.fleet.stream import tls_of
from mldebug_agents.fleet.stream_client import StreamClient
from processes.harness import SCRIPTS, clean_environment, free_port, wait_for
from shared.fleet.fleet_events import DAY, HOUR, attempt, checkpoint, fault, gpu, health, incident
from shared.fleet.nats_server import NatsServer
from shared.fleet.postgres import temporary_server

NODES = tuple(f"gpu{number:03}" for number in range(10))
LEMON = NODES[7]
EVERY = 3.0  # seconds between two batches of one agent
TOKEN = "hub-demo-token-0123456789"
JOBS = (("train.py", 1000, "ada"), ("eval.py", 1001, "bob"), ("sft.py", 1002, "eve"))


def history(node: str, now: float) -> list[AnyEvent]:
    """What happened on a node in the last two weeks."""
    number = NODES.index(node)
    found: list[AnyEvent] = [health(node, now, *(gpu(8 * number + one, f"13209{number}{one:03}") for one in range(8)))]  # fmt: skip
    for day in range(14):
        job, uid, user = JOBS[(day + number // 5) % 3]
        run, began = f"r{day}{number // 5}", now - (day + 1) * DAY
        seconds = {"productive": 8 * 15 * HOUR, "stalled": 8 * (day % 3) * HOUR}
        found.append(attempt(node, began=began, at=began + 18 * HOUR, ended=began + 18 * HOUR, outcome="failed" if day % 3 else "well", run=run, subject=f"attempt/{run}/0", job=job, script=job, uid=uid, user=user, gpu_seconds=seconds))  # fmt: skip
        found.append(checkpoint(100 * day, began + 17 * HOUR, node=node, run=run, job=job, uid=uid))
    if node == LEMON:
        for day in (2, 4, 9):
            at = now - day * DAY
            found.append(fault(node, at, gpu(59, "13209703"), sentence="GPU 3 has fallen off the bus: Xid 79"))  # fmt: skip
            culprit = (FleetCulprit(kind="gpu", node=node, rank=59),)
            found.append(incident(f"i{day}", node, at=at, since=at, run=f"r{day - 1}1", sentence=f"GPU 3 of {node} has fallen off the bus: Xid 79; ranks 0-58,60-79 wait in all_reduce", culprits=culprit))  # fmt: skip
    return found


def agent(nats: NatsServer, node: str, ended: threading.Event) -> None:
    """Sends the history of its node, then that it still lives."""
    client = StreamClient(node, nats.address, tls_of(nats.keys(node)))
    events = history(node, time.time())
    while not ended.is_set():
        with contextlib.suppress(Exception):
            client.deliver(packed(node, "demo", events, {}))
            events = [health(node, time.time())]
        ended.wait(EVERY * random.uniform(0.5, 1.5))


def hub(folder: Path, name: str, nats: NatsServer, database: str, pages: str) -> "subprocess.Popen[bytes]":  # fmt: skip
    """One of the hubs, as a process."""
    config, site = folder / f"{name}.yaml", nats.site.folder
    config.write_text(
        f"agent: {{state_dir: {folder}/{name}, listen: ''}}\n"
        f"hub: {{nats: '{nats.address}', database: '{database}', pages: '{pages}', token_file: {folder}/token, "
        f"certificate: {site}/hub.pem, key: {site}/hub.key, ca: {site}/ca.pem}}\n"
        f"fleet: {{pages: 'http://{pages}', token_file: {folder}/token}}\n"
    )
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen([str(SCRIPTS / "mldebug"), "hub", "--config", str(config)], stdout=log, stderr=log, env=clean_environment(folder))  # fmt: skip


def main() -> None:
    """Start all, open the page, and end all."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else float("inf")
    ended = threading.Event()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as living:
        folder, pages = Path(name), f"127.0.0.1:{free_port()}"
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        postgres = temporary_server()
        living.callback(postgres.stop)
        nats = NatsServer(folder / "nats", NODES)
        nats.start()
        living.callback(nats.kill)
        for number, address in ((1, pages), (2, f"127.0.0.1:{free_port()}")):
            one = hub(folder, f"hub{number}", nats, postgres.database("fleet"), address)
            living.callback(one.wait, 30)
            living.callback(one.terminate)
        senders = [threading.Thread(target=agent, args=(nats, node, ended)) for node in NODES]
        for sender in senders:
            sender.start()
            living.callback(sender.join)
        living.callback(ended.set)
        ask = [str(SCRIPTS / "mldebug"), "fleet", "nodes", "--config", str(folder / "hub1.yaml")]
        nodes = lambda: subprocess.run(ask, env=clean_environment(folder), capture_output=True, text=True, check=False).stdout  # fmt: skip
        wait_for("all nodes", lambda: all(one in nodes() for one in NODES), 120)
        print(nodes(), end="")
        print(f"http://{pages} with the token {TOKEN}; ask: mldebug lemons --config {folder}/hub1.yaml", flush=True)  # fmt: skip
        if os.environ.get("DISPLAY"):
            webbrowser.open(f"http://{pages}")
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(min(seconds, 1e6))


if __name__ == "__main__":
    main()
