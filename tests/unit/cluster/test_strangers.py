"""Who does not belong, or behaves as if: refused, counted, told of once, and nothing is said to him that he could use."""

import ipaddress
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.cluster.messages import MAX_MESSAGE, Announcement, Welcome, read
from mldebug.config.schema import AgentConfig
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.errors import RefusedError, StrangerError
from mldebug_agents.cluster.peers.net.identity import Identity, count_failures, derive, identity
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.openapi import ANNOUNCE
from mldebug_agents.cluster.peers.routes import app
from mldebug_agents.web.server import AgentServer
from processes.harness import wait_for
from unit.cluster.test_peers import KEY, OTHER, Loop, key_file

NAME = b"node-of-many-letters"  # two letters stand in any random bytes now and then
ANNOUNCED = msgspec.json.encode(Announcement(node=NAME.decode(), agent="x", port=1))


@pytest.fixture
def ours(tmp_path: Path) -> Identity:
    return identity(key_file(tmp_path), derive)


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def there(ours: Identity, refusals: Refusals) -> Iterator[Peer]:
    """A peer door on loopback, as an agent opens it."""
    server = AgentServer(AgentConfig(listen=""))
    door = socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    count_failures(ours, lambda why, words: refusals.count(why, "", words))
    plain = app(Loop().ask, "n1", lambda _: b"", proof=ours, refusals=refusals)
    slow = partial(refusals.count, "slow", why="it takes too long to say what it wants")
    server.serve_peers(plain, door, ours.server, slow=slow)
    try:
        yield Peer("127.0.0.1", port)
    finally:
        server.stop(2.0)


def announce(proof: Identity, to: Peer) -> Welcome:
    return read(PeerClient(proof).ask(to, ANNOUNCE, ANNOUNCED, timeout=20.0, most=1 << 20), Welcome)


def proved(proof: Identity, to: Peer) -> ssl.SSLSocket:
    """A connection of who has the key."""
    return proof.client.wrap_socket(socket.create_connection(to[:2], timeout=30))


@contextmanager
def recording(to: Peer) -> Iterator[tuple[Peer, list[bytes]]]:
    """Somebody between two agents, who keeps what the one that asks has sent."""
    door, kept = socket.create_server(("127.0.0.1", 0)), list[bytes]()

    def pump(source: socket.socket, sink: socket.socket, keep: list[bytes]) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                keep.append(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def stand() -> None:
        with suppress(OSError):
            asker, _ = door.accept()
            with asker, socket.create_connection(to[:2]) as on:
                back = threading.Thread(target=pump, args=(on, asker, []), daemon=True)
                back.start()
                pump(asker, on, kept)
                back.join(30)

    thread = threading.Thread(target=stand, daemon=True)
    thread.start()
    try:
        yield Peer("127.0.0.1", door.getsockname()[1]), kept
    finally:
        door.close()
        thread.join(30)


def test_a_recorded_connection_cannot_be_replayed(ours: Identity, refusals: Refusals) -> None:
    server, loop = AgentServer(AgentConfig(listen="")), Loop()
    door = socket.create_server(("127.0.0.1", 0))
    there = Peer("127.0.0.1", door.getsockname()[1])
    count_failures(ours, lambda why, words: refusals.count(why, "", words))
    server.serve_peers(app(loop.ask, "n1", lambda _: b""), door, ours.server)
    try:
        with recording(there) as (between, kept):
            assert announce(ours, between).node == "n1"
        assert len(loop.requests) == 1
        recorded = b"".join(kept)
        assert NAME not in recorded  # nor could it be read
        with socket.create_connection(there[:2], timeout=30) as again, suppress(OSError):
            again.sendall(recorded)
            while again.recv(65536):
                pass
        wait_for("the replay to be refused", lambda: sum(refusals.counts.values()), 30)
        assert announce(ours, there).node == "n1"
    finally:
        server.stop(2.0)
    assert len(loop.requests) == 2  # the first, and the last: nothing came of what lies between


@pytest.mark.parametrize("known", [True, False])
def test_a_body_of_a_gibibyte_is_refused_and_not_kept(
    ours: Identity, there: Peer, refusals: Refusals, known: bool
) -> None:
    """Whether its length is told before, or nobody knows it."""
    part = b"x" * MAX_MESSAGE
    length = b"Content-Length: 1073741824" if known else b"Transfer-Encoding: chunked"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with proved(ours, there) as link, suppress(OSError):
        link.sendall(
            b"POST " + ANNOUNCE.encode() + b" HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n"
        )
        for _ in range(1024):
            link.sendall(part if known else b"%x\r\n%b\r\n" % (len(part), part))
        pytest.fail("all of it was taken")
    wait_for("it to be counted", lambda: refusals.counts["size"], 30)
    kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kept < 48 << 10, f"{kept} KiB"
    assert announce(ours, there).node == "n1"


@pytest.mark.parametrize("words", [b"", b"POST / HT"])
def test_who_has_the_key_and_takes_his_time_is_counted(
    ours: Identity,
    there: Peer,
    refusals: Refusals,
    monkeypatch: pytest.MonkeyPatch,
    words: bytes,
) -> None:
    monkeypatch.setattr("mldebug_agents.web.peer_protocol.PROVED_WORDS", 0.2)
    with proved(ours, there) as link, suppress(OSError):
        link.sendall(words)
        while link.recv(1):
            pass
    assert refusals.counts["slow"] == 1


def test_a_body_that_drips_ends_in_time(
    ours: Identity, there: Peer, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.cluster.peers.routes.BODY", 0.3)
    head = b"POST " + ANNOUNCE.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with proved(ours, there) as link:
        link.sendall(head)
        assert link.recv(65536).startswith(b"HTTP/1.1 408 ")
    assert refusals.counts["slow"] == 1


def test_who_proves_nothing_is_counted_as_slow(
    ours: Identity, there: Peer, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is opened, and kept, is of nobody's use: whoever comes next takes its place."""
    monkeypatch.setattr("mldebug_agents.web.connection_limiter.PROOF", 0.0)
    with socket.create_connection(there[:2], timeout=30) as loris:
        announce(ours, there)
        announce(ours, there)
        assert loris.recv(1) == b""
    assert refusals.counts["slow"] >= 1


# --- whom a job sends us to ---------------------------------------------------------------------------


@contextmanager
def answering(first: bytes) -> Iterator[tuple[Peer, list[bytes]]]:
    """Somebody who takes every connection, says this at once, and keeps what he hears."""
    door, result = socket.create_server(("127.0.0.1", 0)), list[bytes]()

    def live() -> None:
        with suppress(OSError):
            while True:
                link, _ = door.accept()
                with link, suppress(OSError):
                    link.settimeout(30)
                    link.sendall(first)
                    while data := link.recv(65536):
                        result.append(data)

    threading.Thread(target=live, daemon=True).start()
    try:
        yield Peer("127.0.0.1", door.getsockname()[1]), result
    finally:
        door.close()


def secrets_in(results: list[bytes], key: str) -> list[bytes]:
    text = b"".join(results)
    return [one for one in (key.encode(), NAME, b"POST", ANNOUNCED) if one in text]


@pytest.mark.parametrize("first", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_stranger_is_counted_and_hears_no_secret(
    ours: Identity, refusals: Refusals, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    talk = PeerClient(ours, turned_away=refusals.count)
    with answering(first) as (stranger, opened):
        for _ in range(2):
            with pytest.raises(StrangerError):
                talk.ask(stranger, ANNOUNCE, ANNOUNCED, timeout=20.0, most=1 << 20)
    assert refusals.counts["stranger"] == 2
    assert len([one for one in caplog.records if "is refused" in one.message]) == 1
    assert secrets_in(opened, KEY) == []


def test_who_has_another_key_is_counted_and_hears_no_secret(
    ours: Identity, refusals: Refusals, tmp_path: Path
) -> None:
    strange = identity(key_file(tmp_path, OTHER), derive)
    result = list[bytes]()
    door = socket.create_server(("127.0.0.1", 0))

    def live() -> None:
        with suppress(OSError):
            plain, _ = door.accept()
            with strange.server.wrap_socket(plain, server_side=True) as link:
                result.append(link.recv(65536))

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    talk = PeerClient(ours, turned_away=refusals.count)
    with closing(door), pytest.raises(StrangerError, match="does not have the same key"):
        talk.ask(
            Peer("127.0.0.1", door.getsockname()[1]), ANNOUNCE, ANNOUNCED, timeout=20.0, most=9
        )
    thread.join(30)
    assert refusals.counts["stranger"] == 1
    assert b"".join(result) == b""


def test_an_address_out_of_our_networks_is_counted_and_never_asked(
    ours: Identity, refusals: Refusals
) -> None:
    talk = PeerClient(ours, [ipaddress.ip_network("10.1.0.0/16")], turned_away=refusals.count)
    with answering(b"") as (elsewhere, opened), pytest.raises(RefusedError, match="no network"):
        talk.ask(elsewhere, ANNOUNCE, ANNOUNCED, timeout=20.0, most=9)
    assert refusals.counts["network"] == 1
    assert opened == []


# --- names with several addresses ----------------------------------------------------------------------


def addresses(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    def found(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        names = hosts if host == "several" else (host,)
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 6, "", (one, port)) for one in names]

    monkeypatch.setattr("mldebug_agents.cluster.peers.net.client.socket.getaddrinfo", found)


def test_of_a_name_with_several_addresses_the_one_that_answers_is_asked(
    ours: Identity, there: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 127.0.0.2 and 127.0.0.3 nobody listens."""
    addresses(monkeypatch, "127.0.0.2", "127.0.0.3", "127.0.0.1")
    assert announce(ours, Peer("several", there.port)).node == "n1"


def test_of_a_name_with_several_addresses_some_may_be_elsewhere(
    ours: Identity, there: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses(monkeypatch, "127.0.0.2", "169.254.1.1", "127.0.0.1")
    talk = PeerClient(ours, [ipaddress.ip_network("127.0.0.1/32")])
    tried = list[str]()
    real = socket.create_connection

    def connect(to: tuple[str, int], *more: Any) -> socket.socket:
        tried.append(to[0])
        return real(to, *more)

    monkeypatch.setattr("mldebug_agents.cluster.peers.net.client.socket.create_connection", connect)
    answer = talk.ask(Peer("several", there.port), ANNOUNCE, ANNOUNCED, timeout=20.0, most=1 << 20)
    assert read(answer, Welcome).node == "n1"
    assert tried == ["127.0.0.1"]


def test_of_a_name_with_several_addresses_all_may_refuse(
    ours: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses(monkeypatch, "127.0.0.2", "127.0.0.3")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(RefusedError, match="no agent is there"):
        announce(ours, Peer("several", port))


def test_no_certificate_no_words(there: Peer, refusals: Refusals) -> None:
    """A port scanner: it learns that somebody is there, and it is counted."""
    with socket.create_connection(there[:2], timeout=30) as scanner, suppress(OSError):
        scanner.sendall(b"\x00" * 64)
        assert scanner.recv(65536)[:1] in (b"", b"\x15")  # at most an alert of TLS
    wait_for("it to be counted", lambda: sum(refusals.counts.values()), 30)
