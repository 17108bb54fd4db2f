"""Makes events and sends them to a hub as an agent does, until it is killed; the agent's own store, outbox, monitor and client do the work.

usage: fleet_sender.py STATE_DIR HUB KEYS NODE COUNT. KEYS: a key that all share, or a folder with a certificate for each node. It prints how many events wait at its start (`begins with 0`)
and after each answer of the hub (`waiting 0`).
"""

import queue
import random
import sys
import time
from pathlib import Path

import msgspec

from mldebug.config.fleet import FleetConfig
from mldebug.config.schema import Config
from mldebug.fleet.events import AnyEvent
from mldebug_agents.cluster.peers.net.identity import derive
from mldebug_agents.fleet import monitor as sending
from mldebug_agents.fleet.outbox import Outbox
from mldebug_agents.fleet.setup import hub_client
from mldebug_agents.state import server
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.system.workers import Result, Worker
from shared.fleet.fleet_events import fault

FIRST = 1_790_000_000.0  # when the first fault began


def bare(event: AnyEvent) -> AnyEvent:
    """As a look at the agent's state makes it."""
    return msgspec.structs.replace(event, id="", revision=1)


def _fleet(hub: str, keys: Path, node: str) -> FleetConfig:
    if keys.is_dir():
        return FleetConfig(hub=hub, certificate=keys / f"{node}.pem", key=keys / f"{node}.key", ca=keys / "ca.pem")  # fmt: skip
    return FleetConfig(hub=hub, key_file=keys)


def main(state_dir: Path, hub: str, keys: Path, node: str, count: int) -> None:
    """Offer `count` faults in any order: what is known already becomes no event."""
    store = StateStore(state_dir, Spawner({"state": server.serve}), retry=0.01)
    store.start(10)
    store.writer.release()
    client = hub_client(Config(fleet=_fleet(hub, keys, node)), node, derive)
    if client is None:
        raise SystemExit("no hub")
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    worker = Worker("fleet", lambda order: client.deliver(order.body), inbox, 60.0)
    outbox = Outbox(store, 5000, 4 << 20)
    monitor = sending.FleetMonitor(node, hub, outbox, worker, lambda: (), lambda: store.opened)
    sending.SEND_EVERY, sending.PAUSE_FIRST, sending.PAUSE_MOST = 0.02, 0.05, 0.5
    print("up", flush=True)
    left = random.sample(range(count), count)
    begun = False
    while True:
        monitor.tick()
        if not begun and store.opened:
            begun = True
            print(f"begins with {outbox.waiting}", flush=True)
        if left and store.opened:
            outbox.offer(bare(fault(node, FIRST + left.pop())), time.time())
        time.sleep(0.005)
        while not inbox.empty():
            if (result := inbox.get()) is not None:
                monitor.on_result(result)
                print(f"waiting {outbox.waiting}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
