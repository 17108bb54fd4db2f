"""How agents talk: only who has the key gets through, in either direction; everything has an end and a reason in words."""

import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.cluster.messages import Announcement, CaptureOrder, Welcome, read
from mldebug.cluster.wire import MAX_BYTES, unpack
from mldebug.config.schema import AgentConfig, ClusterConfig
from mldebug.core.errors import ConfigError, UsageError
from mldebug_agents.cluster.peers.coordinator_search import CoordinatorSearch
from mldebug_agents.cluster.peers.net.certificates import says
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient, peer
from mldebug_agents.cluster.peers.net.errors import RefusedError, SilentError
from mldebug_agents.cluster.peers.net.identity import (
    NAME,
    Identity,
    RenewedIdentity,
    count_failures,
    derive,
    identity,
    in_child,
    of_certificates,
    read_key,
    serve,
)
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.openapi import ANNOUNCE, CAPTURE, VIEW
from mldebug_agents.cluster.peers.remote_orders import TimedCapture
from mldebug_agents.cluster.peers.routes import app
from mldebug_agents.cluster.peers.setup import join
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.web.server import AgentServer
from processes.harness import wait_for
from shared.cluster.nodes import run
from shared.system.patience import PATIENCE
from system.sites import Site

KEY, OTHER = "a0123456789bcdef" * 4, "b0123456789acdef" * 4
ANNOUNCED = Announcement(node="n2", agent="x", port=1)


def key_file(folder: Path, text: str = KEY, mode: int = 0o600) -> Path:
    file = folder / f"key-{text[:2]}-{mode:o}"
    file.write_text(text + "\n")
    file.chmod(mode)
    return file


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return identity(key_file(tmp_path_factory.mktemp("keys")), derive)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return identity(key_file(tmp_path_factory.mktemp("keys"), OTHER), derive)


class Loop:
    """Answers as a main loop does."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def ask(self, what: object, address: str) -> "Future[Any]":
        self.requests.append((what, address))
        answer: Future[Any] = Future()
        if isinstance(what, Announcement):
            answer.set_result(Welcome(node="n1", agent="me"))
        elif isinstance(what, CaptureOrder):
            answer.set_result(TimedCapture(run(1, 2)["a1"], 0.0) if what.incident else None)
        return answer


@contextmanager
def served(
    proof: Identity,
    loop: Loop,
    admits: Callable[[str], bool] = lambda _: True,
    door: socket.socket | None = None,
) -> Iterator[Peer]:
    """A peer door on loopback."""
    server = AgentServer(AgentConfig(listen=""))
    door = door or socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    server.serve_peers(app(loop.ask, "n1", lambda _: b""), door, proof.server, admits)
    try:
        yield Peer("127.0.0.1", port)
    finally:
        server.stop(2.0)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def there(ours: Identity, loop: Loop) -> Iterator[Peer]:
    with served(ours, loop) as found:
        yield found


def say(proof: Identity, to: Peer, body: bytes = b"", path: str = ANNOUNCE) -> bytes:
    body = body or msgspec.json.encode(ANNOUNCED)
    return PeerClient(proof).ask(to, path, body, timeout=60.0, most=MAX_BYTES)


def test_two_with_the_same_key_understand_each_other(
    ours: Identity, there: Peer, loop: Loop
) -> None:
    assert read(say(ours, there), Welcome).node == "n1"
    assert loop.requests == [(ANNOUNCED, "127.0.0.1")]
    order = CaptureOrder(key=("a",), attempt=0, incident="i")
    (capture,) = unpack(say(ours, there, msgspec.json.encode(order), CAPTURE)).captures
    assert len(capture.ranks) == 2
    order = CaptureOrder(key=("a",), attempt=0, incident="")
    assert unpack(say(ours, there, msgspec.json.encode(order), CAPTURE)).captures == ()


def test_who_has_another_key_gets_nothing_and_gives_nothing(
    ours: Identity, strangers: Identity, there: Peer, loop: Loop
) -> None:
    with pytest.raises(RefusedError, match="does not have the same key"):
        say(strangers, there)
    with served(strangers, loop) as elsewhere, pytest.raises(RefusedError, match="the same key"):
        say(ours, elsewhere)
    assert loop.requests == []


@pytest.mark.parametrize("path", [ANNOUNCE, CAPTURE, VIEW, "/metrics", "/api/v1/status"])
@pytest.mark.parametrize("kind", [http.client.HTTPConnection, http.client.HTTPSConnection])
def test_who_shows_no_certificate_gets_nothing(
    there: Peer, loop: Loop, path: str, kind: type[http.client.HTTPConnection]
) -> None:
    def knock() -> http.client.HTTPResponse:
        link.request("POST", path, b"{}")
        return link.getresponse()

    more = {"context": ssl._create_unverified_context()} if "HTTPS" in kind.__name__ else {}
    link = kind(there.host, there.port, timeout=60, **more)
    with closing(link), pytest.raises((OSError, http.client.HTTPException)):
        knock()
    assert loop.requests == []


def test_a_crowd_that_says_nothing_keeps_nobody_out(ours: Identity, there: Peer) -> None:
    crowd = [socket.create_connection((there.host, there.port)) for _ in range(100)]
    try:
        assert read(say(ours, there), Welcome).node == "n1"
    finally:
        for one in crowd:
            one.close()


def test_who_has_proved_himself_is_not_sent_away_for_a_crowd(ours: Identity) -> None:
    """They come from one address, as all users of a node do."""
    results: list[Future[Any]] = []
    loop, result = Loop(), list[bytes]()
    loop.ask = lambda what, address: results.append(Future()) or results[-1]  # type: ignore
    with served(ours, loop) as there:
        thread = threading.Thread(target=lambda: result.append(say(ours, there)))
        thread.start()
        wait_for("the question", lambda: results, 10)
        crowd = [socket.create_connection((there.host, there.port)) for _ in range(100)]
        try:
            wait_for("the crowd to be sent away", lambda: crowd[0].recv(1) == b"", 10)
            results[0].set_result(Welcome(node="n1", agent="me"))
            thread.join(10)
        finally:
            for one in crowd:
                one.close()
    assert [read(one, Welcome).node for one in result] == ["n1"]


def test_who_proves_nothing_for_seconds_gives_way(
    ours: Identity, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        served(ours, loop) as there,
        socket.create_connection(there[:2], timeout=10 * PATIENCE) as idle,
    ):
        say(ours, there)
        monkeypatch.setattr("mldebug_agents.web.connection_limiter.PROOF", 0.0)
        say(ours, there)
        assert idle.recv(1) == b""


def test_who_comes_from_elsewhere_is_not_let_in(ours: Identity, loop: Loop) -> None:
    """No handshake, so no certificate is shown to him either."""
    talk = PeerClient(ours, [ipaddress.ip_network("10.1.0.0/16")])
    with served(ours, loop, talk.allows) as there, pytest.raises(RefusedError, match="hung up"):
        say(ours, there)
    assert loop.requests == []


def test_one_door_for_both_kinds_of_address(ours: Identity, loop: Loop) -> None:
    """By IPv6 an IPv4 address is ::ffff:127.0.0.1, and is in the same network all the same."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    talk = PeerClient(ours, [ipaddress.ip_network("127.0.0.0/8")])
    door = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with served(ours, loop, talk.allows, door) as there:
        assert read(say(ours, there), Welcome).node == "n1"
        ((_, address),) = loop.requests
        assert address == "127.0.0.1"
        with pytest.raises(RefusedError, match="hung up"):
            say(ours, Peer("::1", there.port))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "malformed"),
        (b'{"schema": "mldebug.peer/7"}', "newer and speaks mldebug.peer/7"),
        (b"x" * (2 << 20), "more than 1024 KiB"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(
    ours: Identity, there: Peer, loop: Loop, body: bytes, words: str
) -> None:
    with pytest.raises((RefusedError, SilentError)) as raised:
        say(ours, there, body)
    # a body that is refused while it is still sent may end in a reset
    assert words in raised.value.message or (len(body) > 1 << 20)
    assert loop.requests == []
    assert read(say(ours, there), Welcome).node == "n1"


def test_a_main_loop_that_does_not_answer_is_told(
    ours: Identity, there: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.cluster.peers.routes.ANSWER", 0.2)
    with pytest.raises(RefusedError, match=r"not done in 0\.2 s"):
        say(ours, there, path=VIEW)  # `Loop` leaves that open


# --- who asks ----------------------------------------------------------------------------------------


@contextmanager
def rude(proof: Identity, answer: bytes, pace: float = 0.0) -> Iterator[Peer]:
    """Somebody who has the key and answers like this, a byte at a time where there is a pace."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            plain, _ = door.accept()
            with proof.server.wrap_socket(plain, server_side=True) as link:
                link.recv(65536)
                for part in (answer,) if not pace else (bytes([one]) for one in answer):
                    link.sendall(part)
                    time.sleep(pace)
        except OSError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Peer("127.0.0.1", door.getsockname()[1])
    finally:
        door.close()
        thread.join(5)


def test_a_byte_at_a_time_does_not_keep_us(ours: Identity) -> None:
    began = time.monotonic()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with (
        rude(ours, head + b"x" * 20, pace=0.05) as to,
        pytest.raises(SilentError, match="no answer in 1 s"),
    ):
        PeerClient(ours).ask(to, "/", b"", timeout=1.0, most=9999)
    assert time.monotonic() - began < 6 * PATIENCE


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"", b"SSH-2.0-OpenSSH\r\n"])
def test_who_does_not_speak_as_an_agent_is_told(ours: Identity, answer: bytes) -> None:
    with rude(ours, answer) as to, pytest.raises(RefusedError):
        PeerClient(ours).ask(to, "/", b"", timeout=60.0, most=9999)


def test_an_endless_answer_ends(ours: Identity) -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    with (
        rude(ours, head + b"x" * 300_000) as to,
        pytest.raises(RefusedError, match="larger than 100 KiB"),
    ):
        PeerClient(ours).ask(to, "/", b"", timeout=60.0, most=100 << 10)


def test_a_port_that_nobody_serves_and_a_name_that_nobody_has(ours: Identity) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(RefusedError, match="no agent is there"):
        PeerClient(ours).ask(Peer("127.0.0.1", port), "/", b"", timeout=60.0, most=1)
    with pytest.raises(SilentError, match="its name is not known"):
        PeerClient(ours).ask(Peer("a..b", 1), "/", b"", timeout=60.0, most=1)


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "fe80::1%lo", "224.0.0.1", "0.0.0.0", "::", "::ffff:169.254.169.254"],
)
def test_some_addresses_are_never_asked(ours: Identity, address: str) -> None:
    """A job, or a name server, may have chosen them: 169.254.169.254 gives credentials away in clouds."""
    assert not PeerClient(ours).allows(address)


def test_other_networks_are_never_asked(ours: Identity, there: Peer, loop: Loop) -> None:
    networks = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8")]
    talk = PeerClient(ours, networks)
    assert talk.allows("10.1.2.3")
    assert talk.allows("fd00::7")
    assert talk.allows("::ffff:10.1.2.3")  # as an IPv6 socket tells it
    assert not talk.allows("::ffff:10.2.2.3")
    with pytest.raises(RefusedError, match=r"no network of cluster\.networks"):
        talk.ask(there, ANNOUNCE, b"", timeout=2.0, most=1)
    assert loop.requests == []


def test_the_first_that_answers_coordinates(
    ours: Identity, strangers: Identity, there: Peer, loop: Loop
) -> None:
    now = [0.0]
    with socket.socket() as door, served(strangers, loop) as other:
        door.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets that port
        nobody = Peer("127.0.0.1", door.getsockname()[1])
        seeker = CoordinatorSearch(PeerClient(ours), (nobody, other, there), lambda: now[0])
        found = seeker.announce(ANNOUNCED)
        assert (found.peer, found.welcome.node) == (there, "n1")
        assert "no agent is there" in found.passed[0]
        assert "the same key" in found.passed[1]
        assert seeker.announce(ANNOUNCED).passed == ()  # they are left alone for a while
        now[0] = 60.0
        assert len(seeker.announce(ANNOUNCED).passed) == 2
    with pytest.raises(SilentError, match="no other agent coordinates"):
        CoordinatorSearch(PeerClient(ours), (nobody,)).announce(ANNOUNCED)


class Rack:
    """Nodes of which the first `dead` do not answer; each question to them takes three seconds."""

    def __init__(self, dead: int) -> None:
        self.dead, self.now, self.requests = dead, 0.0, 0
        self._lock = threading.Lock()

    def ask(self, to: Peer, path: str, body: bytes, *, timeout: float, most: int) -> bytes:
        with self._lock:
            self.requests += 1
        if int(to.host) < self.dead:
            raise SilentError("no answer in 3 s")
        return msgspec.json.encode(Welcome(node=to.host, agent="x"))


@pytest.mark.parametrize("dead", [0, 1, 7, 8, 10, 40, 500])
def test_dead_nodes_before_the_first_that_lives_keep_nobody(dead: int) -> None:
    rack = Rack(dead)
    peers = [Peer(str(number), 1) for number in range(dead + 4)]
    seeker = CoordinatorSearch(rack, peers, lambda: rack.now)  # type: ignore[arg-type]
    assert seeker.announce(ANNOUNCED).peer == peers[dead]
    for _ in range(20):
        rack.now += 2.0
        before = rack.requests
        assert seeker.announce(ANNOUNCED).peer == peers[dead]
        assert rack.requests - before <= 9
    rack.dead, rack.now = (
        0,
        rack.now + 600,
    )  # they are back: in the end the first of all coordinates
    for _ in range(70):
        rack.now += 2.0
        found = seeker.announce(ANNOUNCED).peer
    assert found == peers[0]


class Follower(Rack):
    """n1 coordinates and is not reached, unless `reached`; n2 follows it, and so do all others."""

    reached = False

    def ask(self, to: Peer, *_: object, **__: object) -> bytes:
        if to.host != "n1":
            return msgspec.json.encode(Welcome(node=to.host, agent="x", follows="n1", port=1))
        if not self.reached:
            raise SilentError("no answer in 3 s")
        return msgspec.json.encode(Welcome(node="n1", agent="y"))


def test_who_does_not_reach_the_coordinator_has_somebody_who_does() -> None:
    """Nobody coordinates beside him; as soon as he answers, he is told directly."""
    net = Follower(0)
    names = ("n1", "n2", "n3")
    seeker = CoordinatorSearch(net, [Peer(one, 1) for one in names], lambda: net.now)  # type: ignore[arg-type]
    found = seeker.announce(ANNOUNCED)
    assert (found.peer.host, found.welcome.follows) == ("n2", "n1")
    net.reached = True
    net.now += 600.0
    assert seeker.announce(ANNOUNCED).peer.host == "n1"


def test_peers_in_another_order_lead_to_the_same_coordinator() -> None:
    net = Follower(0)
    net.reached = True
    peers = [Peer(one, 1) for one in ("n2", "n1")]
    seeker = CoordinatorSearch(net, peers, lambda: net.now)  # type: ignore[arg-type]
    assert seeker.announce(ANNOUNCED).peer.host == "n1"


# --- settings ----------------------------------------------------------------------------------------


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    assert read_key(key_file(tmp_path)) == KEY.encode()
    link = tmp_path / "link"
    link.symlink_to(key_file(tmp_path, mode=0o440))  # as Kubernetes shows a secret to a pod
    assert read_key(link) == KEY.encode()
    os.mkfifo(tmp_path / "fifo", 0o600)
    cases = {
        key_file(tmp_path, mode=0o604): "can be read by others",
        key_file(tmp_path, mode=0o620): "can be read by others",
        key_file(tmp_path, "short key"): "has 9 bytes",
        key_file(tmp_path, "z0123456789" * 900): "bytes; a key has",
        key_file(tmp_path, "aa" * 32): "is not random",
        tmp_path / "none": "cannot be read",
        tmp_path / "fifo": "no file of root",
    }
    for file, words in cases.items():
        with pytest.raises(UsageError, match=words):
            read_key(file)


def test_the_child_makes_the_same_certificate(tmp_path: Path) -> None:
    with Spawner({NAME: serve}) as spawner:
        made = in_child(spawner)(KEY.encode())
    assert made == derive(KEY.encode())
    assert made != derive(OTHER.encode())


def test_peers_in_every_form(tmp_path: Path) -> None:
    settings = ClusterConfig(
        key_file=key_file(tmp_path), listen="127.0.0.1:0", networks=("10.0.0.0/8",),
        peers=("node[1-2]", "other:99", "10.0.0.1", "[fd00::1]:7", "fd00::2", "node[3-4]:5"),
    )  # fmt: skip
    joined = join(settings, derive)
    assert joined is not None
    with joined.listener:
        port = joined.port
        assert joined.candidates == (
            Peer("node1", port), Peer("node2", port), Peer("other", 99), Peer("10.0.0.1", port),
            Peer("fd00::1", 7), Peer("fd00::2", port), Peer("node3", 5), Peer("node4", 5),
        )  # fmt: skip
    assert peer("a:1", 2) == Peer("a", 1)


def test_half_a_cluster_is_refused(tmp_path: Path) -> None:
    assert join(ClusterConfig(), derive) is None
    with pytest.raises(ConfigError, match=r"needs cluster\.key_file"):
        join(ClusterConfig(peers=("a",)), derive)
    with pytest.raises(ConfigError, match=r"needs peers, or networks"):
        join(ClusterConfig(key_file=key_file(tmp_path)), derive)
    with pytest.raises(ConfigError, match="go together"):
        join(ClusterConfig(certificate=tmp_path, peers=("a",)), derive)
    both = ClusterConfig(
        key_file=key_file(tmp_path), certificate=tmp_path, key=tmp_path, ca=tmp_path, peers=("a",)
    )
    with pytest.raises(ConfigError, match="not both"):
        join(both, derive)
    with pytest.raises(UsageError, match=r"cluster\.networks"):
        join(
            ClusterConfig(key_file=key_file(tmp_path), peers=("a",), networks=("10.0.0.1/8",)),
            derive,
        )


@pytest.mark.parametrize("text", ["n1:70000", "n[1-2]:65536", "[fd00::1]:70000", "n1:0"])
def test_a_port_that_cannot_be_is_refused(tmp_path: Path, text: str) -> None:
    """The system would take 70000 for 4464."""
    with pytest.raises(ConfigError, match="is no port"):
        join(ClusterConfig(key_file=key_file(tmp_path), peers=(text,)), derive)


# --- certificates of their own -------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@contextmanager
def guarded(proof: Identity, loop: Loop) -> Iterator[tuple[Peer, Refusals]]:
    """A peer door on loopback that counts whom it turns away."""
    server, refusals = AgentServer(AgentConfig(listen="")), Refusals()
    door = socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    count_failures(proof, lambda reason, why: refusals.count(reason, "", why))
    plain = app(loop.ask, "n1", lambda _: b"", proof=proof, refusals=refusals)
    server.serve_peers(plain, door, proof.server)
    try:
        yield Peer("127.0.0.1", port), refusals
    finally:
        server.stop(2.0)


def test_each_node_may_have_a_certificate_of_its_own(site: Site, loop: Loop) -> None:
    with guarded(site.node("n1.cluster", "127.0.0.1"), loop) as (there, refusals):
        assert read(say(site.node("n2"), there), Welcome).node == "n1"
        assert set(refusals.counts.values()) == {0}
        with pytest.raises(RefusedError, match="it calls itself n2, and its certificate is for n3"):
            say(site.node("n3"), there)
        assert refusals.counts["name"] == 1
    assert len(loop.requests) == 1
    with (
        guarded(site.node("elsewhere"), loop) as (there, _),
        pytest.raises(RefusedError, match="its certificate is for elsewhere"),
    ):
        say(site.node("n2"), there)
    assert len(loop.requests) == 1


@pytest.mark.parametrize(
    ("days", "says"),
    [((-9, -1), "has expired"), ((1, 9), "is not valid yet")],
)
def test_a_certificate_out_of_its_time_is_refused_on_both_ends(
    site: Site, loop: Loop, days: tuple[float, float], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = site.node("n1", "127.0.0.1"), site.node("n2", since=days[0], until=days[1])
    with guarded(good, loop) as (there, refusals):
        for _ in range(3):
            with pytest.raises(RefusedError, match=says):
                say(bad, there)
        wait_for("all to be counted", lambda: refusals.counts["certificate"] == 3, 10)
    with guarded(bad, loop) as (there, _), pytest.raises(RefusedError, match=says):
        say(good, there)
    assert loop.requests == []
    messages = [
        one.message for one in caplog.records if "is refused: its certificate" in one.message
    ]
    assert len(messages) == 1


def test_a_certificate_of_another_authority_is_refused(
    site: Site, tmp_path: Path, loop: Loop
) -> None:
    other = Site(tmp_path / "other")
    with guarded(site.node("n1", "127.0.0.1"), loop) as (there, refusals):
        with pytest.raises(RefusedError, match=r"not of cluster\.ca"):
            say(other.node("n2"), there)
        trusting = other.node("n2")._replace(client=site.node("n4").client)
        mixed = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        mixed.check_hostname = False
        mixed.load_verify_locations(site.ca)
        mixed.load_cert_chain(other.folder / "n2.pem", other.folder / "n2.key")
        with pytest.raises(RefusedError, match="does not take the certificate of this node"):
            say(trusting._replace(client=mixed), there)
        wait_for("it to be counted", lambda: refusals.counts["certificate"] >= 1, 10)
    assert loop.requests == []


def test_a_certificate_is_renewed_without_a_restart(site: Site, loop: Loop) -> None:
    """On both ends: one that has expired is refused, its successor in the same files is taken."""
    now = [0.0]
    paths = {
        name: (site.folder / f"{name}.pem", site.folder / f"{name}.key", site.ca)
        for name in ("n1", "n2")
    }
    site.node("n1", "127.0.0.1", since=-2, until=-1)
    site.node("n2", since=-2, until=-1)
    first, second = (RenewedIdentity(*paths[name], clock=lambda: now[0]) for name in paths)
    with guarded(first(), loop) as (there, _):

        def say_n2() -> bytes:
            first()
            talk = PeerClient(second(), newest=second)
            return talk.ask(
                there, ANNOUNCE, msgspec.json.encode(ANNOUNCED), timeout=60.0, most=1 << 20
            )

        with pytest.raises(RefusedError, match="expired"):
            say_n2()
        site.node("n1", "127.0.0.1")
        with pytest.raises(RefusedError, match="expired"):
            say_n2()  # nobody has looked yet
        now[0] += 31.0
        with pytest.raises(RefusedError, match="does not take the certificate of this node"):
            say_n2()
        site.node("n2")
        now[0] += 31.0
        assert read(say_n2(), Welcome).node == "n1"
        paths["n2"][0].write_text("no certificate")
        now[0] += 31.0
        assert read(say_n2(), Welcome).node == "n1"  # the one before stays


def test_strangers_at_the_door_are_counted_and_told_of_once(
    ours: Identity, strangers: Identity, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with guarded(ours, loop) as (there, refusals):
        for _ in range(2):
            with pytest.raises(RefusedError, match="same key"):
                say(strangers, there)
            with socket.create_connection((there.host, there.port), timeout=5 * PATIENCE) as link:
                link.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert link.recv(100) == b""
        with pytest.raises(RefusedError, match=r"more than 1024 KiB|hung up"):
            say(ours, there, b"x" * ((1 << 20) + 1))
        with pytest.raises(RefusedError, match="malformed"):
            say(ours, there, b"{")
        wait_for("all to be counted", lambda: sum(refusals.counts.values()) >= 6, 10)
        assert refusals.counts["size"] == refusals.counts["malformed"] == 1
        assert refusals.counts["handshake"] + refusals.counts["certificate"] == 4
        assert read(say(ours, there), Welcome).node == "n1"
    messages = [one.message for one in caplog.records if "is refused" in one.message]
    assert len(messages) == len(set(messages)) == 4


def test_files_that_do_not_fit_are_refused_in_words(site: Site) -> None:
    site.node("n1")
    site.node("n2")
    pem, key = site.folder / "n1.pem", site.folder / "n2.key"
    with pytest.raises(UsageError, match="do not fit together"):
        of_certificates(pem, key, site.ca)
    with pytest.raises(UsageError, match="cannot be read"):
        of_certificates(site.folder / "none", key, site.ca)
    key.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others"):
        of_certificates(pem, key, site.ca)


@pytest.mark.parametrize(
    ("names", "name", "fits"),
    [
        (("n1.x.org",), "n1", True),
        (("n1",), "n1.x.org", True),
        (("n1.x.org",), "n1.y.org", False),
        (("N1",), "n1", True),
        (("n11",), "n1", False),
        (("10.0.0.1",), "10.0.0.1", True),
        (("10.0.0.1",), "10", False),
        (("fd00::1",), "fd00:0:0::1", True),
        (("*.x.org",), "n1.x.org", False),
    ],
)
def test_whose_certificate_it_is(names: tuple[str, ...], name: str, fits: bool) -> None:
    pairs = [("IP Address" if ":" in one or one[:2] == "10" else "DNS", one) for one in names]
    assert says({"subjectAltName": pairs}, name) is fits
    assert not says({}, name)
