"""The contract of every way to a hub, with real servers: what is taken is acknowledged, once it is stored; who sends is proved."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mldebug.config.fleet import FleetConfig
from mldebug.config.schema import Config
from mldebug.core.errors import MldebugError
from mldebug.core.plugins import create, load, names
from mldebug.fleet.batches import BatchAnswer, packed
from mldebug.fleet.hub_model import BatchRefusedError, HubTransport, ReceivedBatch, Take
from mldebug_agents.cluster.peers.net.identity import derive
from mldebug_agents.fleet.setup import HubClient, KeyFiles, hub_client
from processes.harness import free_port, wait_for
from shared.fleet.fleet_events import fault
from shared.fleet.nats_server import NatsServer
from system.sites import Site

NODES = ("n1", "n2")


class Way(NamedTuple):
    """A running server of one transport: options of a hub on it, and where and with which keys a node sends."""

    options: dict[str, Any]
    address: str
    keys: Callable[[str], KeyFiles]


def by_https(folder: Path) -> Way:
    site, port = Site(folder / "site"), free_port()
    for name in ("hub", *NODES):
        site.node(name, "127.0.0.1")

    def keys(name: str) -> KeyFiles:
        return KeyFiles(None, site.folder / f"{name}.pem", site.folder / f"{name}.key", site.ca)

    address = f"127.0.0.1:{port}"
    return Way({"listen": address, "keys": keys("hub")}, f"https://{address}", keys)


def by_nats(folder: Path) -> Way:
    server = NatsServer(folder / "nats", NODES)
    server.start()
    SERVERS.append(server)
    return Way({"servers": server.address, "keys": server.keys("hub")}, server.address, server.keys)


SERVERS: list[NatsServer] = []
WAYS: dict[str, Callable[[Path], Way]] = {"https": by_https, "nats": by_nats}
"""By transport. A new one has to be here."""


@pytest.fixture(params=names("hub_transports"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def way(kind: str, tmp_path: Path) -> Iterator[Way]:
    yield WAYS[kind](tmp_path)
    while SERVERS:
        SERVERS.pop().kill()


def client(way: Way, node: str, keys_of: str = "") -> HubClient:
    _, certificate, key, ca = way.keys(keys_of or node)
    fleet = FleetConfig(hub=way.address, certificate=certificate, key=key, ca=ca)
    found = hub_client(Config(fleet=fleet), node, derive)
    assert found is not None
    return found


def begun(kind: str, way: Way, take: Take, *, wait: bool = True) -> HubTransport:
    made: HubTransport = create("hub_transports", kind, load("hub_transports", kind).Options(**way.options))  # fmt: skip
    made.start(take)
    if wait:
        wait_for("the hub", lambda: made.waiting() is not None, 60)
    return made


class Taken:
    """A `take` that remembers, and fails as often as it is told."""

    def __init__(self, *failures: Exception) -> None:
        self.batches: list[ReceivedBatch] = []
        self.tries = 0
        self._failures = list(failures)
        self._lock = threading.Lock()

    def __call__(self, came: ReceivedBatch) -> BatchAnswer:
        with self._lock:
            self.tries += 1
            if self._failures:
                raise self._failures.pop(0)
            self.batches.append(came)
        return BatchAnswer(stored=len(came.batch.events), doubles=7)


def batch(node: str, number: int = 0, claims: str = "") -> bytes:
    return packed(claims or node, "1", [fault(claims or node, 1e9 + number)], {})


def test_a_sender_is_proved_and_hears_the_answer_of_the_hub(kind: str, way: Way) -> None:
    taken = Taken()
    hub = begun(kind, way, taken)
    for node in NODES:
        assert client(way, node).deliver(batch(node)) == BatchAnswer(stored=1, doubles=7)
    assert [(one.sender, one.batch.node) for one in taken.batches] == [(node, node) for node in NODES]  # fmt: skip
    assert hub.waiting() == 0
    hub.stop()


def test_what_cannot_be_stored_now_is_brought_again(kind: str, way: Way) -> None:
    """By the agent or by what stands between: nobody has to know which."""
    taken = Taken(OSError("the disk is full"))
    hub = begun(kind, way, taken)
    sender = client(way, "n1")

    def send() -> bool:
        try:
            sender.deliver(batch("n1"))
        except MldebugError:
            return False
        return True

    wait_for("the sender", send, 60)
    wait_for("the batch", lambda: taken.batches, 60)
    assert len(taken.batches) == 1
    hub.stop()


def test_garbage_is_told_and_does_not_come_again(kind: str, way: Way) -> None:
    taken = Taken()
    hub = begun(kind, way, taken)
    sender = client(way, "n1")
    for body in (b"", b"{", b"\xff" * 1000):
        try:
            answer = sender.deliver(body)
        except MldebugError as error:
            assert "malformed" in error.message  # noqa: PT017 - one of both
        else:
            assert answer.troubles[0].reason == "malformed"
    assert sender.deliver(batch("n1")).stored == 1
    assert taken.tries == 1
    assert hub.refused()["malformed"] == 3
    hub.stop()


def test_a_batch_that_is_refused_is_told(kind: str, way: Way) -> None:
    taken = Taken(BatchRefusedError("name", "it calls itself n2, and is n1"))
    hub = begun(kind, way, taken)
    try:
        answer = client(way, "n1").deliver(batch("n1"))
    except MldebugError as error:
        assert "calls itself n2" in error.message  # noqa: PT017 - one of both
    else:
        assert answer.refused == 1
        assert "calls itself n2" in answer.troubles[0].why
    hub.stop()


def test_no_node_sends_with_the_certificate_of_another(kind: str, way: Way) -> None:
    taken = Taken()
    hub = begun(kind, way, taken)
    with pytest.raises(MldebugError):
        client(way, "n2", keys_of="n1").deliver(batch("n2"))
    assert client(way, "n2").deliver(batch("n2")).stored == 1  # nobody was harmed
    assert [one.sender for one in taken.batches] == ["n2"]
    hub.stop()


def test_without_a_server_the_agent_keeps_its_events(kind: str, way: Way) -> None:
    gone = way._replace(address=way.address.rpartition(":")[0] + f":{free_port()}")
    with pytest.raises(MldebugError):
        client(gone, "n1").deliver(batch("n1"))


# --- NATS ------------------------------------------------------------------------------------------


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path / "nats", NODES)
    made.start()
    yield made
    made.kill()


def of(server: NatsServer) -> Way:
    return Way({"servers": server.address, "keys": server.keys("hub")}, server.address, server.keys)


def test_while_no_hub_lives_batches_wait_in_the_stream(nats: NatsServer) -> None:
    way = of(nats)
    begun("nats", way, Taken()).stop()  # has made the stream
    began = time.monotonic()
    for number in range(2):
        assert client(way, "n1").deliver(batch("n1", number)) == BatchAnswer(stored=1)
    assert time.monotonic() - began > 5  # which has waited for an answer
    nats.kill()
    nats.start()
    taken = Taken()
    hub = begun("nats", way, taken)
    wait_for("both", lambda: len(taken.batches) == 2, 60)
    hub.stop()


def test_a_batch_that_is_sent_twice_is_taken_once(nats: NatsServer) -> None:
    taken = Taken()
    hub = begun("nats", of(nats), taken)
    assert client(of(nats), "n1").deliver(batch("n1")) == BatchAnswer(stored=1, doubles=7)
    assert client(of(nats), "n1").deliver(batch("n1")) == BatchAnswer(stored=1)
    assert len(taken.batches) == 1
    hub.stop()


def test_two_hubs_take_each_batch_once_and_one_may_die(nats: NatsServer) -> None:
    way, first, second = of(nats), Taken(), Taken()
    hubs = [begun("nats", way, first), begun("nats", way, second)]
    for number in range(12):
        client(way, "n1").deliver(batch("n1", number))
    assert len(first.batches) + len(second.batches) == 12
    hubs[0].stop()
    for number in range(12, 15):
        assert client(way, "n1").deliver(batch("n1", number)).stored == 1
    assert len(first.batches) + len(second.batches) == 15
    hubs[1].stop()


def test_a_hub_finds_a_server_that_goes_and_comes(nats: NatsServer) -> None:
    taken = Taken()
    nats.kill()
    hub = begun("nats", of(nats), taken, wait=False)  # before there is one
    for number in range(2):
        nats.start()
        wait_for("the hub", lambda: hub.waiting() == 0, 60)
        client(of(nats), "n1").deliver(batch("n1", number))
        wait_for("the batch", lambda: any(one.batch.events for one in taken.batches), 60)
        taken.batches.clear()
        nats.kill()
        wait_for("the hub to notice", lambda: hub.waiting() is None, 60)
    hub.stop()


def test_no_node_has_the_hub_publish_for_it(nats: NatsServer) -> None:
    """A hub may publish where a node may not: to other nodes, and to the interface of JetStream."""
    from mldebug_agents.fleet.hub.transports.nats.consumer import _is_inbox

    assert _is_inbox("_INBOX.n1.Abc123", "n1")
    wrong = ("", "_INBOX.n2.Abc", "_INBOX.n1", "_INBOX.n1.", "_INBOX.n1.*", "_INBOX.n1.>", "_INBOX.n1.a.b", "_INBOX.n11.a", "$JS.API.STREAM.DELETE.MLDEBUG_EVENTS")  # fmt: skip
    assert not any(_is_inbox(subject, "n1") for subject in wrong)


def test_a_shared_key_is_none_for_nats(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a0123456789bcdef" * 4)
    key.chmod(0o600)
    fleet = FleetConfig(hub="nats://127.0.0.1:4222", key_file=key)
    with pytest.raises(MldebugError, match="a certificate for each node"):
        hub_client(Config(fleet=fleet), "n1", derive)
