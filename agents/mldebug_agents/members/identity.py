"""The proof that two agents have the same key: TLS 1.3 in which both sides show the certificate that follows from it.

The private key of that certificate is derived from the shared key, so only who has the shared key gets through the
handshake, on either side, and nothing of it is ever sent. What travels is encrypted and cannot be replayed.
"""

import datetime
import hmac
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mldebug.errors import ToolError, UsageError
from mldebug_agents.spawn import Spawner

MIN_KEY, MAX_KEY = 32, 4096  # bytes
MAKE_ONE = "openssl rand -hex 32 > FILE; chmod 600 FILE; the same file on all nodes"
LIBRARY = "pip install 'mldebug[cluster]'"
NAME = "identity"  # of the worker that the process starter forks
PATIENCE = 20.0  # seconds
MAX_PAIR = 16 << 10  # bytes
_END = b"-----END CERTIFICATE-----\n"
_PURPOSE = b"mldebug peers, TLS identity, 1"


class Identity(NamedTuple):
    """What both ends of a connection between agents use."""

    client: ssl.SSLContext
    server: ssl.SSLContext


class Pair(NamedTuple):
    """Certificate and private key, PEM."""

    certificate: bytes
    private: bytes


def identity(key_file: Path, make: Callable[[bytes], Pair]) -> Identity:
    """Read the shared key; UsageError in words where the file will not do. `make`: `derive`, here or in a child."""
    certificate, private = make(read_key(key_file))
    return Identity(
        client=_context(ssl.PROTOCOL_TLS_CLIENT, certificate, private),
        server=_context(ssl.PROTOCOL_TLS_SERVER, certificate, private),
    )


def read_key(file: Path) -> bytes:
    """The shared key: no link, of root or this user, closed to all others, and long enough to be random."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", MAKE_ONE) from error
    with open(fd, "rb") as opened:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{file} is no file of root or of this user", MAKE_ONE)
        if found.st_mode & 0o077:
            raise UsageError(f"{file} can be read by others", f"chmod 600 {file}")
        key = opened.read(MAX_KEY + 1).strip()
    if not MIN_KEY <= len(key) <= MAX_KEY:
        raise UsageError(f"{file} has {len(key)} bytes; a key has {MIN_KEY} to {MAX_KEY}", MAKE_ONE)
    return key


def in_child(spawner: Spawner) -> Callable[[bytes], Pair]:
    """`derive` in a child, for the library that it needs once would cost the agent 12 MiB for ever."""

    def make(key: bytes) -> Pair:
        worker = spawner.fork_worker(NAME)
        try:
            worker.socket.settimeout(PATIENCE)
            worker.socket.sendall(key)
            worker.socket.shutdown(socket.SHUT_WR)
            with worker.socket.makefile("rb") as link:
                told = link.read(MAX_PAIR)
        except OSError as error:
            raise ToolError(f"the key cannot be used: {error}", LIBRARY) from error
        finally:
            worker.kill()
        certificate, found, private = told.partition(_END)
        if not found:
            raise ToolError("agents that talk to each other need the package cryptography", LIBRARY)
        return Pair(certificate + found, private)

    return make


def serve(link: socket.socket) -> None:
    """The child: a key comes, certificate and private key go."""
    with link, link.makefile("rb") as told:
        link.sendall(b"".join(derive(told.read(MAX_KEY))))


def derive(key: bytes) -> Pair:
    """The same on all nodes, byte by byte; it never expires, for the clocks of nodes differ."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(hmac.digest(key, _PURPOSE, "sha256"))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mldebug agent")])
    certificate = (
        x509.CertificateBuilder(name, name, private.public_key(), 1)
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, None)
    )
    pem = serialization.Encoding.PEM
    none = serialization.NoEncryption()
    secret = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)
    return Pair(certificate.public_bytes(pem), secret)


def _context(purpose: int, certificate: bytes, private: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate says which cluster, not which node
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    with _in_memory(certificate + private) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """`ssl` reads private keys from files alone."""
    fd = os.memfd_create("mldebug-peer", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
