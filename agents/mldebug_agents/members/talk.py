"""One question to another agent, with a deadline for all of it, and an answer of bounded size."""

import contextlib
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mldebug.errors import MldebugError

CONNECT = 3.0  # seconds
_CHUNK = 1 << 16

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peer(NamedTuple):
    """Where an agent can be asked."""

    host: str
    port: int


class SilentError(MldebugError):
    """Nothing came from there: it may be down, or cut off."""


class RefusedError(MldebugError):
    """Somebody answered, and is no agent with our key, or will not do it."""


def peer(text: str, port: int) -> Peer:
    """`host`, `host:port`, `[::1]:port`; `port` where none is said."""
    host, colon, told = text.rpartition(":")
    if not colon or not told.isdecimal() or (":" in host and not host.startswith("[")):
        return Peer(text.strip("[]"), port)
    return Peer(host.strip("[]"), int(told))


class Talk:
    """`networks`: where other agents may be; none: anywhere but link-local and multicast."""

    def __init__(self, context: ssl.SSLContext, networks: Sequence[Network] = ()) -> None:
        self._context = context
        self._networks = tuple(networks)

    def ask(self, to: Peer, path: str, body: bytes, *, timeout: float, most: int) -> bytes:
        """POST; SilentError or RefusedError in words. Resolving a name may take longer than `timeout`."""
        deadline = time.monotonic() + timeout
        address = self._address(to)
        link = http.client.HTTPSConnection(
            address, to.port, timeout=min(CONNECT, timeout), context=self._context
        )
        try:
            with _in_words(timeout):
                link.connect()
                sock = link.sock  # `link` forgets it when the answer is to end it
                sock.settimeout(max(0.01, deadline - time.monotonic()))
                link.request("POST", path, body)
                answer = link.getresponse()
                told = b"".join(_read(sock, answer, deadline, most))
        finally:
            link.close()
        if answer.status != 200:
            raise RefusedError(told[:300].decode(errors="replace") or f"status {answer.status}")
        return told

    def _address(self, to: Peer) -> str:
        """The first address that is allowed."""
        try:
            found = socket.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise SilentError(f"its name is not known: {error}") from error
        addresses = [str(one[4][0]) for one in found]
        allowed = [one for one in addresses if self.allows(one)]
        if not allowed:
            raise RefusedError(f"{addresses[0]} is in no network of cluster.networks")
        return allowed[0]

    def allows(self, address: str) -> bool:
        """May an agent be there?"""
        ip = ipaddress.ip_address(address.partition("%")[0])
        if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
            return False
        return not self._networks or any(ip in one for one in self._networks)


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
def _in_words(timeout: float) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise RefusedError("it does not have the same key") from error
    except TimeoutError as error:
        raise SilentError(f"no answer in {timeout:g} s") from error
    except http.client.HTTPException as error:
        raise RefusedError(
            f"it does not answer as an agent does: {type(error).__name__}"
        ) from error
    except ConnectionRefusedError as error:
        raise RefusedError("the node answers, and no agent is there") from error
    except ConnectionResetError as error:
        raise RefusedError("it hung up") from error
    except OSError as error:
        raise SilentError(error.strerror or str(error)) from error
