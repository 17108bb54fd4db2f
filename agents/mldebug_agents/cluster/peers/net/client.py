"""One request to another agent, with a deadline for all of it, and a limit on the size of the answer."""

import contextlib
import errno
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mldebug_agents.cluster.peers.net.certificates import CertificateError
from mldebug_agents.cluster.peers.net.errors import (
    CutError,
    NoRoomError,
    RefusedError,
    SilentError,
    SlowError,
    StrangerError,
)
from mldebug_agents.cluster.peers.net.http_answer import HttpAnswer, head
from mldebug_agents.cluster.peers.net.identity import Identity
from mldebug_agents.system.gone import LOOK, Gone

CONNECT = 3.0  # seconds
MAX_ADDRESSES = 8  # of one name
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FULL = "this node cannot open one more connection: {}"
_CHUNK = 1 << 16

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peer(NamedTuple):
    """The address of another agent: host name or IP, TCP port, and the name of its node where that is known."""

    host: str
    port: int
    name: str = ""  # of the node, where it is known: its certificate may say this one


def peer(text: str, port: int) -> Peer:
    """Parse an address from the configuration: `host`, `host:port` or `[::1]:port`. `port` is taken where the text has none."""
    host, colon, port_text = text.rpartition(":")
    if not colon or not port_text.isdecimal() or (":" in host and not host.startswith("[")):
        return Peer(text.strip("[]"), port)
    return Peer(host.strip("[]"), int(port_text))


def plain_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an IP address, without its scope (`fe80::1%eth0`). An IPv4 address mapped into IPv6 (`::ffff:10.0.0.1`) becomes the IPv4 one.

    Raises ValueError where the text is no address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


class PeerClient:
    """Sends requests to other agents. `networks`: the networks they may be in; empty: any address but link-local and multicast."""

    def __init__(
        self,
        proof: Identity,
        networks: Sequence[Network] = (),
        newest: Callable[[], Identity] | None = None,
        turned_away: Callable[[str, str, str], None] = lambda *_: None,
    ) -> None:
        """`proof`: the certificate with which this agent identifies itself. `newest`: returns the current certificate, where it is renewed.

        `turned_away` is called, from any thread, for a host that no request was sent to, as `(reason, host, sentence)`; the reason is
        `"stranger"` (wrong certificate) or `"network"` (address not allowed).
        """
        self._turned_away = turned_away
        self._newest = newest or (lambda: proof)
        self._networks = tuple(networks)

    def ask(
        self,
        to: Peer,
        path: str,
        body: bytes,
        *,
        timeout: float,
        most: int,
        gone: Gone | None = None,
    ) -> bytes:
        """POST `body` to `path` of another agent and return the body of its answer, at most `most` bytes.

        `timeout`: seconds for all of it, but resolving the host's name may take longer. `gone`: asked meanwhile whether nobody waits for
        the answer any more; then the other agent is hung up on. Raises one of the errors in `errors.py` with
        a sentence for people: `SilentError` where no answer came, `RefusedError` where there is no agent or it may not be asked.
        """
        until = time.monotonic() + timeout
        with contextlib.closing(self.connect(to, until)) as line:
            line.timeout = timeout
            line.send(path, body)
            return line.answer(most, gone)

    def connect(self, to: Peer, until: float, patience: float | None = None) -> "PeerConnection":
        """Connect to the first address of the host that accepts, and check the certificates of both sides.

        `until`: time.monotonic() when everything sent and received must be over. `patience`: seconds for the TLS handshake,
        `CONNECT` by default. Raises as `ask`; also `StrangerError` for a wrong certificate, `SlowError` for a handshake that hangs.
        """
        proof = self._newest()
        addresses = self._addresses(to)
        timeout = min(patience or CONNECT, max(0.0, until - time.monotonic()))
        try:
            with in_words(timeout, proof):
                return self._proved(to, addresses, until, proof, patience)
        except StrangerError as error:
            self._turned_away("stranger", to.host, error.message)
            raise

    def _proved(
        self,
        to: Peer,
        addresses: Sequence[str],
        until: float,
        proof: Identity,
        patience: float | None,
    ) -> "PeerConnection":
        plain = _reach(addresses, to.port, until)
        if patience is not None:
            plain.settimeout(max(0.01, min(patience, until - time.monotonic())))
        try:
            sock = proof.client.wrap_socket(plain)
        except TimeoutError as error:
            waited = plain.gettimeout() or 0.0
            plain.close()
            raise SlowError(f"no answer in {round(waited, 1):g} s") from error
        except BaseException:
            plain.close()
            raise
        try:
            proof.check(sock.getpeercert() or {}, to.host, to.name)
        except BaseException:
            sock.close()
            raise
        return PeerConnection(sock, to.host, proof, until)

    def _addresses(self, to: Peer) -> tuple[str, ...]:
        """Those of its addresses that are allowed, in the order of the resolver."""
        try:
            found = socket.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            _check_room()  # without a descriptor no name is known
            raise SilentError(f"its name is not known: {error}") from error
        addresses = [str(one[4][0]) for one in found]
        allowed = [address for address in addresses if self.allows(address)]
        if not allowed:
            why = f"{addresses[0]} is in no network of cluster.networks"
            self._turned_away("network", to.host, why)
            raise RefusedError(why)
        return tuple(dict.fromkeys(allowed))[:MAX_ADDRESSES]

    def allows(self, address: str) -> bool:
        """Whether agents may be at this IP address: in one of `networks`, and no link-local, multicast or unspecified address."""
        ip = plain_ip(address)
        if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
            return False
        return not self._networks or any(ip in network for network in self._networks)


class PeerConnection:
    """A TLS connection to an agent whose certificate was checked. `until`: time.monotonic() when all sending and receiving must
    be done.
    """

    def __init__(self, sock: ssl.SSLSocket, host: str, proof: Identity, until: float) -> None:
        self._sock, self._host, self._proof = sock, host, proof
        self.until = until
        self.timeout = max(0.0, until - time.monotonic())  # seconds, as it is told

    def allow(self, until: float, seconds: float) -> None:
        """Set a new deadline: `until` in monotonic time, and the number of `seconds` that an error about it names."""
        self.until, self.timeout = until, seconds

    def fileno(self) -> int:
        """The socket's file descriptor, so that a selector can wait for it."""
        return self._sock.fileno()

    def send(self, path: str, body: bytes) -> None:
        """Send a POST request. Raises `SilentError` at the deadline, however slowly the other side reads, and `CutError` where it hung up."""
        data = memoryview(head(self._host, path, len(body)) + body)
        with self._in_words():
            while data:
                self._sock.settimeout(self._left())
                data = data[self._sock.send(data[:_CHUNK]) :]

    def answer(self, most: int, gone: Gone | None = None) -> bytes:
        """Wait for the answer and return its body, at most `most` bytes.

        Raises `SilentError` at the deadline, however slowly the other side writes, or when nobody waits for it any more (`gone`), and
        `CutError` where it hung up.
        """
        answer, complete = HttpAnswer(most), False
        while not complete:
            with self._in_words():
                data = self._next(answer, gone)
            complete = answer.feed(data)
        return answer.body()

    def _next(self, answer: HttpAnswer, gone: Gone | None) -> bytes:
        """What arrives next. TimeoutError at the deadline, and where nobody wants it any more."""
        while True:
            left = self._left()
            self._sock.settimeout(left if gone is None else min(LOOK, left))
            try:
                return self._received(answer)
            except TimeoutError:
                if gone is None or gone():
                    raise

    def take(self, answer: HttpAnswer) -> bool:
        """Read what has arrived by now into `answer`, without waiting. Returns whether the answer is complete."""
        self._sock.setblocking(False)
        while True:
            try:
                with self._in_words():
                    data = self._received(answer)
            except _NotYetError:
                return False
            if answer.feed(data):
                return True
            if not self._sock.pending():  # the rest is in the kernel, where a selector sees it
                return False

    def close(self) -> None:
        """Close the connection to the other agent."""
        self._sock.close()

    def _received(self, answer: HttpAnswer) -> bytes:
        data = self._sock.recv(_CHUNK)
        if not data and not answer.begun:
            raise ConnectionResetError
        return data

    def _left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _in_words(self) -> contextlib.AbstractContextManager[None]:
        return in_words(self.timeout, self._proof)


def _reach(addresses: Sequence[str], port: int, until: float) -> socket.socket:
    """The first address that takes a connection; OSError of the last where none of them does."""
    for number, address in enumerate(addresses, 1):
        left = min(CONNECT, until - time.monotonic())
        try:
            return socket.create_connection((address, port), max(0.01, left))
        except OSError as error:
            if number == len(addresses) or left <= 0 or error.errno in NO_ROOM:
                raise
    raise TimeoutError


def _check_room() -> None:
    """NoRoomError where this node itself cannot open anything."""
    try:
        socket.socket().close()
    except OSError as error:
        raise NoRoomError(_FULL.format(error.strerror)) from error


class _NotYetError(Exception):
    """There is nothing to read by now."""


@contextlib.contextmanager
def in_words(timeout: float, proof: Identity) -> Iterator[None]:
    """Turn errors of sockets and of TLS into those of `errors.py`, each with one sentence about the other node. A context manager.

    `timeout`: the seconds that the sentence names ("no answer in 3 s"). A connection reset becomes `CutError`, a wrong
    certificate `StrangerError`, a refused one `RefusedError`, no descriptors left here `NoRoomError`, all else `SilentError`.
    """
    try:
        yield
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
        raise _NotYetError from error
    except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError) as error:
        raise CutError(proof.in_words(error) if proof.named else "it hung up") from error
    except (ssl.SSLError, CertificateError) as error:
        raise StrangerError(proof.in_words(error)) from error
    except TimeoutError as error:
        raise SilentError(f"no answer in {round(timeout, 1):g} s") from error
    except ConnectionRefusedError as error:
        raise RefusedError("the node answers, and no agent is there") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise NoRoomError(_FULL.format(error.strerror)) from error
        raise SilentError(error.strerror or str(error)) from error
