"""Batches over HTTPS into a hub: only agents get in, each speaks for its own node, and what one of them sends harms no other."""

import http.client
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.config.fleet import FleetConfig, HubConfig
from mldebug.config.schema import ClusterConfig, Config
from mldebug.core.errors import ConfigError, EvidenceError
from mldebug.core.plugins import create
from mldebug.fleet.batches import MAX_BATCH, PATH, BatchAnswer, batch_of, packed
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.hub_model import EventFilter, FleetStore, ReceivedBatch, StoreTotals
from mldebug.fleet.validation import SKEW
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.errors import RefusedError
from mldebug_agents.cluster.peers.net.identity import Identity, derive
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.fleet.hub.intake import BURST, Intake
from mldebug_agents.fleet.hub.stores.sqlite import SqliteStore
from mldebug_agents.fleet.hub.transports import https
from mldebug_agents.fleet.setup import KeyFiles, hub_client, keys_of, proof
from shared.fleet.fleet_events import NOW, fault, one_of_each
from system.sites import Site

KEY, OTHER = "a0123456789bcdef" * 4, "b0123456789acdef" * 4


def key_file(folder: Path, text: str = KEY) -> Path:
    file = folder / f"key-{text[:2]}"
    file.write_text(text)
    file.chmod(0o600)
    return file


def ids(events: Sequence[AnyEvent]) -> set[str]:
    return {one.id for one in events}


class RunningHub:
    """The store, the intake and the HTTPS transport of a hub, on loopback."""

    def __init__(self, folder: Path, keys: KeyFiles, store: FleetStore | None = None) -> None:
        self.store = store or SqliteStore(folder / "hub")
        self.store.open()
        self.intake = Intake(self.store, Refusals(), lambda: NOW)
        self.transport = https.HttpsTransport(https.Options(keys=keys))
        self.transport.start(self.intake.take)
        self.peer = Peer("127.0.0.1", self.transport.port)

    def send(self, who: Identity, body: bytes, path: str = PATH) -> BatchAnswer:
        answer = PeerClient(who).ask(self.peer, path, body, timeout=60.0, most=1 << 20)
        return msgspec.json.decode(answer, type=BatchAnswer)

    def found(self) -> set[str]:
        return ids(self.store.find(EventFilter()))

    def close(self) -> None:
        self.transport.stop()
        self.intake.close()
        self.store.close()


@contextmanager
def hub(folder: Path, keys: KeyFiles, store: FleetStore | None = None) -> Iterator[RunningHub]:
    running = RunningHub(folder, keys, store)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("sites") / "site")


@pytest.fixture(scope="module")
def nodes(site: Site) -> dict[str, Identity]:
    return {name: site.node(name, "127.0.0.1") for name in ("hub", "n1", "n2")}


@pytest.fixture
def certified(tmp_path: Path, site: Site, nodes: dict[str, Identity]) -> Iterator[RunningHub]:
    """A hub of a fleet in which each node has a certificate of its own."""
    keys = KeyFiles(certificate=site.folder / "hub.pem", key=site.folder / "hub.key", ca=site.ca)
    with hub(tmp_path, keys) as running:
        yield running


def batch(node: str = "n1", events: Sequence[AnyEvent] = (), **lost: int) -> bytes:
    return packed(node, "1.0", events, lost)


# --- who gets in -----------------------------------------------------------------------------------


def test_an_agent_with_the_key_is_answered_when_its_events_are_stored(tmp_path: Path) -> None:
    keys = KeyFiles(key_file=key_file(tmp_path))
    with hub(tmp_path, keys) as running:
        agent = proof(keys, derive).now
        assert running.send(agent, batch(events=one_of_each())) == BatchAnswer(stored=7)
        assert running.send(agent, batch(events=one_of_each())) == BatchAnswer(doubles=7)
        assert running.found() == ids(one_of_each())


def test_who_has_another_key_or_none_sends_nothing(tmp_path: Path) -> None:
    with hub(tmp_path, KeyFiles(key_file=key_file(tmp_path))) as running:
        stranger = proof(KeyFiles(key_file=key_file(tmp_path, OTHER)), derive).now
        with pytest.raises(RefusedError, match="the same key"):
            running.send(stranger, batch(events=one_of_each()))
        for context in (None, ssl._create_unverified_context()):
            with pytest.raises((OSError, http.client.HTTPException)):
                _bare(running.peer, context)
        assert running.found() == set()
        assert sum(running.transport.refused().values()) >= 1


def _bare(to: Peer, context: ssl.SSLContext | None) -> None:
    if context is None:
        link = http.client.HTTPConnection(to.host, to.port, timeout=20)
    else:
        link = http.client.HTTPSConnection(to.host, to.port, timeout=20, context=context)
    try:
        link.request("POST", PATH, batch(events=one_of_each()))
        link.getresponse()
    finally:
        link.close()


def test_an_agent_does_not_speak_to_another_machine_than_the_hub(site: Site, certified: RunningHub) -> None:  # fmt: skip
    """The hub's certificate has to be for the name that the configuration gives."""
    imposter = Peer("localhost", certified.peer.port)
    with pytest.raises(RefusedError, match="its certificate is for"):
        PeerClient(site.node("n1")).ask(imposter, PATH, batch(), timeout=60.0, most=1 << 20)


def test_a_node_speaks_for_itself_alone(certified: RunningHub, nodes: dict[str, Identity]) -> None:
    with pytest.raises(RefusedError, match="it calls itself n2, and its certificate is for"):
        certified.send(nodes["n1"], batch("n2", [fault("n2")]))
    answer = certified.send(nodes["n1"], batch("n1", [fault("n2"), fault("n1")]))
    assert (answer.stored, answer.refused, answer.troubles[0].reason) == (1, 1, "name")
    assert certified.found() == {fault("n1").id}
    assert certified.transport.refused()["name"] == 1


def test_without_certificates_a_node_that_is_heard_from_two_addresses_is_told(tmp_path: Path) -> None:  # fmt: skip
    store = SqliteStore(tmp_path)
    store.open()
    intake = Intake(store, Refusals(), lambda: NOW)
    for address in ("10.0.0.1", "10.0.0.2"):
        intake.take(ReceivedBatch(batch_of(batch("n1", [fault()])), "", address))
    (sender,) = intake.senders()
    assert (sender.address, sender.other_address) == ("10.0.0.2", "10.0.0.1")
    intake.close()
    store.close()


# --- what is refused -------------------------------------------------------------------------------


def test_a_bad_event_spoils_no_other(certified: RunningHub, nodes: dict[str, Identity]) -> None:
    future = msgspec.structs.replace(fault(), at=NOW + SKEW + 900)
    raws = [msgspec.json.encode(one) for one in (fault(), future)]
    raws += [b'{"kind":"unheard"}', b"[]", b'"x"', b'{"kind":"incident","sentence":"%s"}' % (b"x" * 20_000)]  # fmt: skip
    body = b'{"node":"n1","version":"1","events":[%s]}' % b",".join(raws)
    answer = certified.send(nodes["n1"], body)
    assert (answer.stored, answer.refused) == (1, 5)
    assert [one.reason for one in answer.troubles] == ["future", "malformed", "malformed", "malformed", "size"]  # fmt: skip
    assert "900" in answer.troubles[0].why or "1,200" in answer.troubles[0].why
    (sender,) = certified.intake.senders()
    assert sender.refused == {"future": 1, "malformed": 3, "size": 1}
    assert certified.found() == {fault().id}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "malformed"),
        (b"\x00\xff" * 100, "malformed"),
        (b"[" * 200_000, "malformed"),
        (b'{"node":"n1","events":7}', "malformed"),
        (b'{"node":"../x","events":[]}', "malformed"),
        (b'{"schema":"mldebug.fleet/9","node":"n1"}', "another schema"),
        (b" " * (MAX_BATCH + 1), "more than 1024 KiB"),
        (b" " * (4 * MAX_BATCH), "more than 1024 KiB"),
    ],
)
def test_garbage_is_refused_in_words_and_the_hub_goes_on(
    certified: RunningHub, nodes: dict[str, Identity], body: bytes, words: str
) -> None:
    with pytest.raises(RefusedError, match=words):
        certified.send(nodes["n1"], body)
    assert certified.send(nodes["n2"], batch("n2", [fault("n2")])).stored == 1


def test_a_flood_of_one_node_is_stopped_and_others_get_through(certified: RunningHub, nodes: dict[str, Identity]) -> None:  # fmt: skip
    events = [fault("n1", NOW - number) for number in range(500)]
    for _ in range(int(BURST) // len(events)):
        certified.send(nodes["n1"], batch("n1", events))
    with pytest.raises(RefusedError, match="n1 sends too many events"):
        certified.send(nodes["n1"], batch("n1", events))
    assert certified.send(nodes["n2"], batch("n2", [fault("n2")])).stored == 1


def test_what_an_agent_had_to_drop_is_told(
    certified: RunningHub, nodes: dict[str, Identity]
) -> None:
    certified.send(nodes["n1"], batch("n1", [fault()], probe=3))
    assert certified.intake.senders()[0].lost == {"probe": 3}


@pytest.mark.parametrize("number", [-1, 1 << 62, 10**400])
def test_a_figure_that_cannot_be_is_refused(number: int) -> None:
    """One node's would be in a sum of all."""
    body = batch("n1", [fault()], probe=7).replace(b":7", b":%d" % number)
    with pytest.raises(EvidenceError):
        batch_of(body)


# --- a disk that fails, and many at once -----------------------------------------------------------


class SickStore:
    """Fails while it is `sick`."""

    sick = True

    def __init__(self) -> None:
        self.stored: set[str] = set()

    def open(self) -> None: ...

    def add(self, batches: Sequence[Sequence[AnyEvent]], received: float) -> list[int]:
        if self.sick:
            raise OSError("No space left on device")
        counts = []
        for events in batches:
            counts.append(len({one.id for one in events} - self.stored))
            self.stored |= {one.id for one in events}
        return counts

    def find(self, wanted: EventFilter) -> list[AnyEvent]:
        return []

    def totals(self) -> StoreTotals:
        return StoreTotals(len(self.stored), 0)

    def prune(self, before: float, most_bytes: int) -> int:
        return 0

    def close(self) -> None: ...


def test_while_the_disk_is_full_nothing_is_acknowledged(tmp_path: Path) -> None:
    keys, store = KeyFiles(key_file=key_file(tmp_path)), SickStore()
    with hub(tmp_path, keys, store) as running:
        agent = proof(keys, derive).now
        with pytest.raises(RefusedError, match="No space left"):
            running.send(agent, batch(events=one_of_each()))
        assert running.intake.trouble == "No space left on device"
        store.sick = False
        assert running.send(agent, batch(events=one_of_each())).stored == 7
        assert running.intake.trouble == ""


def test_many_agents_at_once_are_each_stored_once(tmp_path: Path) -> None:
    keys = KeyFiles(key_file=key_file(tmp_path))
    with hub(tmp_path, keys) as running:
        agent = proof(keys, derive).now

        def send(number: int) -> int:
            node = f"n{number % 20}"
            return running.send(agent, batch(node, [fault(node, NOW - each) for each in range(20)])).stored  # fmt: skip

        with ThreadPoolExecutor(8) as pool:
            counts = list(pool.map(send, range(60)))
        assert sum(counts) == 20 * 20 == len(running.found())


def test_a_slow_sender_keeps_nobody_out(certified: RunningHub, nodes: dict[str, Identity]) -> None:
    def dawdle() -> None:
        line = PeerClient(nodes["n1"]).connect(certified.peer, time.monotonic() + 60)
        line._sock.send(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{")  # fmt: skip
        done.wait(30)
        line.close()

    done = threading.Event()
    threads = [threading.Thread(target=dawdle) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert certified.send(nodes["n2"], batch("n2", [fault("n2")])).stored == 1
    done.set()
    for thread in threads:
        thread.join(30)


# --- settings --------------------------------------------------------------------------------------


def test_the_keys_of_the_section_go_before_those_of_the_cluster(tmp_path: Path) -> None:
    own, shared = key_file(tmp_path), key_file(tmp_path, OTHER)
    cluster = ClusterConfig(key_file=shared)
    assert keys_of(FleetConfig(key_file=own), Config(cluster=cluster)).key_file == own
    assert keys_of(HubConfig(), Config(cluster=cluster)).key_file == shared
    with pytest.raises(ConfigError, match="needs a key_file"):
        keys_of(FleetConfig(), Config())


def test_the_hub_is_where_the_configuration_says_and_nowhere_else(tmp_path: Path) -> None:
    fleet = FleetConfig(hub="https://hub01:1234", key_file=key_file(tmp_path))
    client = hub_client(Config(fleet=fleet), "n1", derive)
    assert client is not None
    assert client.address == "hub01:1234"
    assert hub_client(Config(), "n1", derive) is None


def test_the_transport_is_a_plugin(tmp_path: Path) -> None:
    options = https.Options(keys=KeyFiles(key_file=key_file(tmp_path)))
    transport: Any = create("hub_transports", "https", options)
    transport.start(lambda _: BatchAnswer())
    assert transport.port > 0
    transport.stop()
