"""One order to many nodes: none hears it before all were reached, and nobody who is late, slow or gone keeps the others."""

import gc
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pytest

from mldebug.core.errors import MldebugError
from mldebug_agents.cluster.peers.net import broadcast, connect_pool
from mldebug_agents.cluster.peers.net.broadcast import NodeAnswer
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient, PeerConnection
from mldebug_agents.cluster.peers.net.connect_pool import ConnectPool
from mldebug_agents.cluster.peers.net.errors import CutError, NoRoomError, RefusedError, SilentError
from mldebug_agents.cluster.peers.net.http_answer import HttpAnswer
from mldebug_agents.cluster.peers.net.identity import Identity, derive, identity
from shared.system.patience import PATIENCE

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
Serve = Callable[[ssl.SSLSocket], None]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    file = tmp_path_factory.mktemp("keys") / "key"
    file.write_text("a0123456789bcdef" * 4)
    file.chmod(0o600)
    return identity(file, derive)


def says(answer: bytes, result: threading.Event | None = None) -> Serve:
    """Answers an order like this."""

    def serve(link: ssl.SSLSocket) -> None:
        assert link.recv(65536).startswith(b"POST /capture HTTP/1.1\r\n")
        link.sendall(answer)
        if result is not None:
            result.set()

    return serve


@contextmanager
def node(
    proof: Identity, *serve: Serve, before: Callable[[], object] = lambda: None
) -> Iterator[Peer]:
    """A node that serves one connection after the other; `before` each handshake."""
    door = socket.create_server(("127.0.0.1", 0))

    def live() -> None:
        for one in serve:
            with suppress(OSError):
                plain, _ = door.accept()
                with plain:
                    before()
                    with proof.server.wrap_socket(plain, server_side=True) as link:
                        one(link)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield Peer("127.0.0.1", door.getsockname()[1])
    finally:
        door.close()
        thread.join(0.1)


def fire(talk: PeerClient, to: Sequence[Peer], patience: float = 30.0) -> list[NodeAnswer]:
    return list(broadcast.broadcast(talk, to, "/capture", b"{}", most=1 << 20, patience=patience))


def bodies(shots: Sequence[NodeAnswer]) -> list[bytes | MldebugError]:
    return [one.answer for one in shots]


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a crowded machine does: all are waited for."""
    monkeypatch.setattr(broadcast, "LULL", 60.0)
    monkeypatch.setattr(broadcast, "GATHER", 60.0)


@pytest.mark.parametrize("threads", [0, 1, 5, 192])
def test_nobody_hears_the_order_before_all_are_reached(
    ours: Identity, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    patient(monkeypatch)
    monkeypatch.setattr(connect_pool, "MOST", threads)
    result = list[str]()

    class Noting(PeerClient):
        def connect(self, to: Peer, until: float) -> PeerConnection:
            line = super().connect(to, until)
            result.append("reached")
            return line

    def serve(link: ssl.SSLSocket) -> None:
        link.recv(65536)
        result.append("order")
        link.sendall(ANSWER)

    with ExitStack() as stack:
        nodes = [stack.enter_context(node(ours, serve)) for _ in range(24)]
        shots = fire(Noting(ours), nodes)
    assert bodies(shots) == [b"hello"] * 24
    assert result[:24] == ["reached"] * 24
    assert all(one.sent is not None and one.came is not None for one in shots)


def test_who_is_reached_late_keeps_nobody_and_hears_it_all_the_same(
    ours: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handshake ends only after another node has answered."""
    monkeypatch.setattr(broadcast, "LULL", 0.05)
    answered = threading.Event()
    with (
        node(ours, says(ANSWER, answered)) as first,
        node(ours, says(ANSWER), before=lambda: answered.wait(60)) as late,
    ):
        monkeypatch.setattr("mldebug_agents.cluster.peers.net.client.CONNECT", 60.0)
        assert bodies(fire(PeerClient(ours), [late, first])) == [b"hello", b"hello"]
    assert answered.is_set()


def test_who_never_proves_anything_is_silent_and_keeps_nobody(ours: Identity) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, node(ours, says(ANSWER)) as lives:
        silent, result = bodies(
            fire(PeerClient(ours), [Peer("127.0.0.1", mute.getsockname()[1]), lives], 20.0)
        )
    assert result == b"hello"
    assert isinstance(silent, SilentError)
    assert silent.message == "no answer in 3 s"


def test_nothing_keeps_an_answer_that_its_reader_has_dropped(ours: Identity) -> None:
    """Answers with traces have tens of MiB each, and the garbage collector may come an hour later."""
    body = b"x" * 65536
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n" + body
    gc.disable()
    try:
        with node(ours, says(answer)) as one, node(ours, says(answer)) as two:
            found = bodies(fire(PeerClient(ours), [one, two]))
        assert found == [body, body]
        assert [sys.getrefcount(one) for one in found] == [3, 3]  # the list, the loop, the call
    finally:
        gc.enable()


def test_an_answer_that_is_cut_in_the_middle_is_asked_for_again(ours: Identity) -> None:
    with (
        node(ours, says(ANSWER[:-2]), says(ANSWER)) as cut,
        node(ours, says(ANSWER[:9]), says(b"")) as twice,
    ):
        result, gone = bodies(fire(PeerClient(ours), [cut, twice]))
    assert result == b"hello"
    assert isinstance(gone, CutError)


@pytest.mark.parametrize("answer", [b"H", b"HTTP/1.1 200 OK\r\nX: ", ANSWER[:-5]])
def test_what_drips_ends_in_time(ours: Identity, answer: bytes) -> None:
    """A byte now and then, in the head or in the body, for ever; for who asks one node, too."""

    def drip(link: ssl.SSLSocket) -> None:
        link.recv(65536)
        for number in range(10_000):
            link.sendall(answer[number : number + 1] or b"x" * (number % 40 == 0))
            time.sleep(0.005)

    answer = answer.replace(b"Content-Length: 5", b"Content-Length: 99999")
    with node(ours, drip, drip) as to:
        (result,) = bodies(fire(PeerClient(ours), [to], 0.5))
        assert isinstance(result, SilentError)
        assert result.message == "no answer in 0.5 s"
        with pytest.raises(SilentError, match=r"no answer in 0\.5 s"):
            PeerClient(ours).ask(to, "/", b"", timeout=0.5, most=1 << 20)


class Scarce(PeerClient):
    """A node with room for one connection at a time."""

    def __init__(self, proof: Identity, room: int) -> None:
        super().__init__(proof)
        self.room, self._open, self._lock = room, 0, threading.Lock()

    def connect(self, to: Peer, until: float) -> PeerConnection:
        with self._lock:
            if self._open >= self.room:
                raise NoRoomError("this node cannot open one more connection: Too many open files")
            self._open += 1
        line = super().connect(to, until)
        close = line.close

        def closed() -> None:
            self._open -= 1
            close()

        line.close = closed  # type: ignore[method-assign]
        return line


@pytest.mark.parametrize("room", [1, 3])
def test_want_of_descriptors_costs_time_and_no_node(ours: Identity, room: int) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(node(ours, says(ANSWER))) for _ in range(8)]
        assert bodies(fire(Scarce(ours, room), nodes)) == [b"hello"] * 8


def test_want_of_descriptors_says_nothing_of_the_others(ours: Identity) -> None:
    shots = bodies(fire(Scarce(ours, 0), [Peer("127.0.0.1", 1)] * 3))
    assert all(isinstance(one, NoRoomError) for one in shots)
    assert not any(isinstance(one, (SilentError, RefusedError)) for one in shots)


def test_a_full_table_of_descriptors_is_no_unknown_name(
    ours: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("mldebug_agents.cluster.peers.net.client.socket.socket", full)
    with pytest.raises(NoRoomError, match="Too many open files"):
        PeerClient(ours).connect(Peer("a..b", 1), time.monotonic() + 5)
    monkeypatch.setattr("mldebug_agents.cluster.peers.net.client.socket.create_connection", full)
    with pytest.raises(NoRoomError, match="Too many open files"):
        PeerClient(ours).connect(Peer("127.0.0.1", 1), time.monotonic() + 5)


class Stuck(PeerClient):
    """The first name is looked up for ever."""

    def __init__(self, proof: Identity) -> None:
        super().__init__(proof)
        self.go = threading.Event()

    def connect(self, to: Peer, until: float) -> PeerConnection:
        self.go.wait(60)
        return super().connect(to, until)


def test_who_was_not_come_to_is_not_silent(ours: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_pool, "MOST", 1)
    monkeypatch.setattr(broadcast, "GATHER", 0.1)
    monkeypatch.setattr(broadcast, "GRACE", 0.1)
    talk = Stuck(ours)
    try:
        shots = bodies(fire(talk, [Peer("127.0.0.1", 1)] * 2, 0.1))
    finally:
        talk.go.set()
    words = [one.message for one in shots if isinstance(one, MldebugError)]
    assert not any(isinstance(one, (SilentError, RefusedError)) for one in shots)
    assert words[0] == "its name was not looked up in time"
    assert words[1].startswith("it was not asked")


def test_who_is_reached_when_nobody_waits_is_hung_up() -> None:
    here, there = socket.socketpair()
    there.settimeout(60)
    go = threading.Event()

    class Late(PeerConnection):
        def __init__(self) -> None:
            pass

        def close(self) -> None:
            here.close()

    def connect(_: int) -> PeerConnection:
        go.wait(60)
        return Late()

    with there:
        one = ConnectPool(connect, 1)
        one.go(0)
        while not one.begun:
            time.sleep(0.01)
        one.end()
        go.set()
        assert there.recv(1) == b""


def test_where_threads_are_scarce_some_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the child that captures our own ranks, and the job itself, would find none."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def scarce(one: threading.Thread) -> None:
        if len(started) >= 8:
            raise RuntimeError("can't start new thread")
        started.append(one)
        start(one)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", scarce)
        one = ConnectPool(lambda _: (_ for _ in ()).throw(SilentError("no")), 100)
    for number in range(20):
        one.go(number)
    ended = 0
    until = time.monotonic() + 60 * PATIENCE
    while ended < 2 and time.monotonic() < until:
        ended = sum(not each.is_alive() for each in started)
        time.sleep(0.01)
    came = list[int]()
    while len(came) < 20 and time.monotonic() < until:
        came += [number for number, _ in one.came()]
    assert (ended, sorted(came)) == (2, list(range(20)))
    assert sum(each.is_alive() for each in started) == 6
    one.end()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_in_pieces_is_the_same(size: int) -> None:
    answer = HttpAnswer(100)
    pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    assert [answer.feed(one) for one in pieces] == [False] * (len(pieces) - 1) + [True]
    assert answer.body() == b"hello"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "does not answer as an agent does"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "as an agent does"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000, "as an agent does"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", "larger than 1 KiB"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "in the middle"),
        (b"", "it hung up"),
        (b"HTTP/1.1 409 no\r\nContent-Length: 4\r\n\r\nbusy", "busy"),
    ],
)
def test_what_is_no_answer_is_told(answer: bytes, words: str) -> None:
    def whole() -> bytes:
        http_answer = HttpAnswer(1 << 10)
        return http_answer.body() if http_answer.feed(answer) or http_answer.feed(b"") else b""

    with pytest.raises(RefusedError, match=words):
        whole()


def test_an_agent_with_others_may_have_all_the_descriptors_that_it_can() -> None:
    """In a process of its own: a limit that is raised stays so."""
    code = (
        "import resource as r; from mldebug_agents.cluster.peers.setup import more_descriptors\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, hard))\n"
        "more_descriptors(); assert r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class CountingScarce(Scarce):
    """Counts who has come to nothing, too, as the system does."""

    def connect(self, to: Peer, until: float, patience: float | None = None) -> PeerConnection:
        with self._lock:
            if self._open >= self.room:
                raise NoRoomError("this node cannot open one more connection: Too many open files")
            self._open += 1
        try:
            line = PeerClient.connect(self, to, until, patience)
        except BaseException:
            with self._lock:
                self._open -= 1
            raise
        close = line.close

        def closed() -> None:
            with self._lock:
                self._open -= 1
            close()

        line.close = closed  # type: ignore[method-assign]
        return line


@pytest.mark.parametrize("room", [1, 3])
def test_want_of_descriptors_costs_no_node_where_others_refuse(ours: Identity, room: int) -> None:
    with socket.socket() as door, ExitStack() as stack:
        door.bind(("127.0.0.1", 0))  # nobody listens, and no node gets its port
        dead = Peer("127.0.0.1", door.getsockname()[1])
        nodes = [stack.enter_context(node(ours, says(ANSWER))) for _ in range(6)]
        result = bodies(fire(CountingScarce(ours, room), [nodes[0], dead, dead, dead, *nodes[1:]]))
    assert [one for one in result if isinstance(one, bytes)] == [b"hello"] * 6
    assert [type(one) for one in result[1:4]] == [RefusedError] * 3


def test_who_says_nothing_takes_nobody_s_descriptor_for_ever(ours: Identity) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, ExitStack() as stack:
        nodes = [stack.enter_context(node(ours, says(ANSWER))) for _ in range(6)]
        silent = Peer("127.0.0.1", mute.getsockname()[1])
        result = bodies(fire(CountingScarce(ours, 2), [silent, silent, *nodes]))
    assert result[2:] == [b"hello"] * 6
    assert [type(one) for one in result[:2]] == [broadcast.SlowError] * 2


def test_one_handshake_that_is_too_slow_is_tried_again(
    ours: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.cluster.peers.net.client.CONNECT", 0.5)
    monkeypatch.setattr(broadcast, "SLOW", 30.0)
    once = iter([2.0])
    slow = node(ours, says(ANSWER), says(ANSWER), before=lambda: time.sleep(next(once, 0.0)))
    with slow as late, node(ours, says(ANSWER)) as first:
        assert bodies(fire(PeerClient(ours), [late, first])) == [b"hello", b"hello"]


class Given:
    """A clock."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def is_time(given: Given, ready: int, last: float, of: int = 11, first: float = 100.0) -> bool:
    """With so many reached, of whom the last came then."""
    one = broadcast.Broadcast(None, [Peer("n", 1)] * of, "/", b"", 1, 20.0, given)  # type: ignore[arg-type]
    one._ready = dict.fromkeys(range(ready))  # type: ignore[arg-type]
    one._first, one._last = first, last
    return one._is_time()


def test_how_long_those_who_are_reached_wait_for_the_others() -> None:
    """With the constants as they are: they are the distance between the first capture and the last."""
    given = Given()
    assert is_time(given, 11, 100.0)
    given.now = 103.0
    assert not is_time(
        given, 1, 100.0
    )  # our own node is reached at once, the others are in their handshake
    assert not is_time(given, 0, 100.0)
    assert is_time(given, 6, 101.9)
    assert not is_time(given, 6, 102.1)
    given.now = 104.9
    assert not is_time(given, 5, 104.8)
    given.now = 105.0
    assert is_time(given, 1, 104.9)
    assert not is_time(given, 0, 104.9)
