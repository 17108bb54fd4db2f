"""One question to another agent, with a deadline for all of it, and an answer of bounded size."""

import contextlib
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mldebug.errors import MldebugError
from mldebug_agents.members.certificates import CertificateError
from mldebug_agents.members.identity import Identity

CONNECT = 3.0  # seconds
MAX_ADDRESSES = 8  # of one name
_CHUNK = 1 << 16

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peer(NamedTuple):
    """Where an agent can be asked."""

    host: str
    port: int
    name: str = ""  # of the node, where it is known: its certificate may say this one


class SilentError(MldebugError):
    """Nothing came from there: it may be down, or cut off."""


class RefusedError(MldebugError):
    """Somebody answered, and is no agent with our key, or will not do it."""


class CutError(RefusedError):
    """The connection was taken, and cut before an answer: by the other side, or by what lies between."""


def peer(text: str, port: int) -> Peer:
    """`host`, `host:port`, `[::1]:port`; `port` where none is said."""
    host, colon, told = text.rpartition(":")
    if not colon or not told.isdecimal() or (":" in host and not host.startswith("[")):
        return Peer(text.strip("[]"), port)
    return Peer(host.strip("[]"), int(told))


def plain_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address without its scope; an IPv4 one that came by an IPv6 socket is an IPv4 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


class Talk:
    """`networks`: where other agents may be; none: anywhere but link-local and multicast."""

    def __init__(
        self,
        proof: Identity,
        networks: Sequence[Network] = (),
        newest: Callable[[], Identity] | None = None,
    ) -> None:
        """`newest`: the proof by now, where it is renewed."""
        self._newest = newest or (lambda: proof)
        self._networks = tuple(networks)

    def ask(self, to: Peer, path: str, body: bytes, *, timeout: float, most: int) -> bytes:
        """POST; SilentError or RefusedError in words. Resolving a name may take longer than `timeout`."""
        deadline = time.monotonic() + timeout
        proof = self._newest()
        link = _Link(to.host, to.port, proof.client)
        try:
            with _in_words(timeout, proof):
                link.reach(self._addresses(to), deadline)
                sock = link.sock  # `link` forgets it when the answer is to end it
                proof.check(sock.getpeercert() or {}, to.host, to.name)
                sock.settimeout(max(0.01, deadline - time.monotonic()))
                link.request("POST", path, body)
                answer = link.getresponse()
                told = b"".join(_read(sock, answer, deadline, most))
        finally:
            link.close()
        if answer.status != 200:
            raise RefusedError(told[:300].decode(errors="replace") or f"status {answer.status}")
        return told

    def _addresses(self, to: Peer) -> tuple[str, ...]:
        """Those of its addresses that are allowed, in the order of the resolver."""
        try:
            found = socket.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise SilentError(f"its name is not known: {error}") from error
        addresses = [str(one[4][0]) for one in found]
        allowed = [one for one in addresses if self.allows(one)]
        if not allowed:
            raise RefusedError(f"{addresses[0]} is in no network of cluster.networks")
        return tuple(dict.fromkeys(allowed))[:MAX_ADDRESSES]

    def allows(self, address: str) -> bool:
        """May an agent be there?"""
        ip = plain_ip(address)
        if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
            return False
        return not self._networks or any(ip in one for one in self._networks)


class _Link(http.client.HTTPSConnection):
    """To the first of several addresses that takes a connection."""

    sock: ssl.SSLSocket

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port, context=context)
        self._proving = context

    def reach(self, addresses: Sequence[str], deadline: float) -> None:
        """Connect, and prove; OSError of the last where none of them does."""
        for number, address in enumerate(addresses, 1):
            left = min(CONNECT, deadline - time.monotonic())
            try:
                plain = socket.create_connection((address, self.port), max(0.01, left))
            except OSError:
                if number == len(addresses) or left <= 0:
                    raise
                continue
            self.sock = self._proving.wrap_socket(plain)
            return


def _read(
    sock: socket.socket, answer: http.client.HTTPResponse, deadline: float, most: int
) -> Iterator[bytes]:
    """Whoever sends a byte a second does not keep us."""
    size = 0
    while chunk := answer.read1(_CHUNK):
        size += len(chunk)
        if size > most:
            raise RefusedError(f"its answer is larger than {most >> 10} KiB")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        with contextlib.suppress(OSError):  # it may have hung up behind its last byte
            sock.settimeout(left)
        yield chunk


@contextlib.contextmanager
def _in_words(timeout: float, proof: Identity) -> Iterator[None]:
    try:
        yield
    except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError) as error:
        raise CutError(proof.in_words(error) if proof.named else "it hung up") from error
    except (ssl.SSLError, CertificateError) as error:
        raise RefusedError(proof.in_words(error)) from error
    except TimeoutError as error:
        raise SilentError(f"no answer in {timeout:g} s") from error
    except http.client.HTTPException as error:
        raise RefusedError(
            f"it does not answer as an agent does: {type(error).__name__}"
        ) from error
    except ConnectionRefusedError as error:
        raise RefusedError("the node answers, and no agent is there") from error
    except OSError as error:
        raise SilentError(error.strerror or str(error)) from error
