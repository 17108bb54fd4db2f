"""How two agents prove that they belong together: TLS 1.3, in which both sides show a certificate.

It is either made from their shared key, or each node has one of its own, signed by the site. In the first case the private key is
derived from the shared key, so only an agent that has the shared key gets through the handshake, and nothing of it is ever sent.
What is sent is encrypted and cannot be replayed.
"""

import datetime
import hmac
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from mldebug.core.errors import MldebugError, ToolError, UsageError
from mldebug.core.files import read_secret
from mldebug.core.redact import clean
from mldebug_agents.cluster.peers.net.certificates import (
    Certificate,
    CertificateError,
    in_words,
    is_strange,
    owners,
    reason_of,
    says,
)
from mldebug_agents.system.child.link import ChildLink, ask_once
from mldebug_agents.system.spawn import Spawner

log = logging.getLogger("mldebug")

EVERY = 30.0  # seconds between two looks at the files of a certificate
MIN_KEY, MAX_KEY = 32, 4096  # bytes
MIN_DIFFERENT = 8  # of them: 32 random hexadecimal digits have fewer once in 100,000
MAKE_ONE = "openssl rand -hex 32 > FILE; chmod 600 FILE; the same file on all nodes"
LIBRARY = "pip install cryptography"
NAME = "identity"  # of the worker that the process starter forks
PATIENCE = 20.0  # seconds
MAX_FILE = 256 << 10  # bytes, of a certificate with its chain, or a CA with several
CERTIFICATES = "cluster: {certificate: FILE, key: FILE, ca: FILE}, all PEM"
_PURPOSE = b"mldebug peers, TLS identity, 1"


class Identity(NamedTuple):
    """The TLS contexts with which an agent proves itself, as client and as server. `named`: each node has a certificate of its
    own.
    """

    client: ssl.SSLContext
    server: ssl.SSLContext
    named: bool = False

    def check(self, certificate: Certificate, *names: str) -> None:
        """Raise CertificateError where each node has its own certificate, and this one is for none of the names in `names`."""
        if self.named and not any(says(certificate, name) for name in names if name):
            raise CertificateError(f"its certificate is for {owners(certificate)}")

    def in_words(self, error: Exception) -> str:
        """Why a connection failed with this error, in words about the other end."""
        if isinstance(error, CertificateError):
            return str(error)
        if self.named and isinstance(error, (ssl.SSLEOFError, ConnectionError)):
            return self._hung_up()  # asyncio sends no alert
        if isinstance(error, ssl.SSLEOFError):
            return "it hung up before the key was proved"
        if self.named or is_strange(error):
            return in_words(error)
        return "it does not have the same key"

    def _hung_up(self) -> str:
        trouble = _own_trouble(self)
        return f"it does not take the certificate of this node: {trouble or 'its log says why'}"


class SharedKey(msgspec.Struct, frozen=True):
    """The shared key, from which the child makes a certificate and its private key."""

    key: bytes


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate and its private key, PEM."""

    certificate: bytes
    private: bytes


def _own_trouble(proof: Identity) -> str:
    """What another node that trusts the same CA says of our certificate now; "" for nothing."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        proof.client.wrap_bio(there, back),
        proof.server.wrap_bio(back, there, server_side=True),
    )
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            return in_words(error).replace("its certificate", "it")
    return ""


def of_certificates(certificate: Path, key: Path, ca: Path) -> Identity:
    """The identity from this node's own certificate and the CA of all. Raises UsageError where a file cannot be used."""
    own = _read(certificate) + b"\n" + read_secret(key, MAKE_ONE, MAX_FILE)
    trusted = _read(ca)
    try:
        client = _context(ssl.PROTOCOL_TLS_CLIENT, trusted, own)
        server = _context(ssl.PROTOCOL_TLS_SERVER, trusted, own)
    except (ssl.SSLError, ValueError) as error:
        why = f"{certificate}, {key} and {ca} do not fit together: {clean(str(error), 200)}"
        raise UsageError(why, "all three are PEM, the key without a password") from error
    return Identity(client, server, named=True)


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_FILE)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", CERTIFICATES) from error


def count_failures(proof: Identity, on_failure: Callable[[str, str], None]) -> None:
    """Have `on_failure` called with a reason and a sentence for each failed handshake of the identity's server."""

    class Counted(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                shown = "CERTIFICATE" in reason_of(error)
                on_failure("certificate" if shown else "handshake", proof.in_words(error))
                raise

    proof.server.sslobject_class = Counted


def identity(key_file: Path, make: Callable[[bytes], KeyPair]) -> Identity:
    """The identity made from the shared key in a file. Raises UsageError where the file cannot be used. `make`: turns the key
    into certificate and private key (`derive`, here or in a child).
    """
    pair = make(read_key(key_file))
    own = pair.certificate + pair.private
    return Identity(
        client=_context(ssl.PROTOCOL_TLS_CLIENT, pair.certificate, own),
        server=_context(ssl.PROTOCOL_TLS_SERVER, pair.certificate, own),
    )


def read_key(file: Path) -> bytes:
    """Read the shared key. Raises UsageError where the file cannot be used, or the key is too short to be random."""
    key = read_secret(file, MAKE_ONE, MAX_FILE).strip()
    if len(set(key)) < MIN_DIFFERENT:
        raise UsageError(f"{file} is not random: it has {len(set(key))} different bytes", MAKE_ONE)
    if not MIN_KEY <= len(key) <= MAX_KEY:
        raise UsageError(f"{file} has {len(key)} bytes; a key has {MIN_KEY} to {MAX_KEY}", MAKE_ONE)
    return key


def in_child(spawner: Spawner) -> Callable[[bytes], KeyPair]:
    """A function that runs `derive` in a child process, because the library it loads would cost the agent 12 MiB for good."""

    def make(key: bytes) -> KeyPair:
        worker = spawner.fork_worker(NAME)
        try:
            return ask_once(worker, SharedKey(key), msgspec.msgpack.Decoder(KeyPair), PATIENCE)
        except ConnectionError as error:  # the child had no such library
            why = "agents that talk to each other need the package cryptography"
            raise ToolError(why, LIBRARY) from error
        except OSError as error:
            raise ToolError(f"the key cannot be used: {error}", LIBRARY) from error

    return make


def serve(connection: socket.socket) -> None:
    """The child's main function: receives the key that all agents of a cluster share, and sends back the certificate and the private key
    that follow from it (see `derive`).
    """
    link = ChildLink(connection, msgspec.msgpack.Decoder(SharedKey))
    link.send(derive(link.receive().key))


def derive(key: bytes) -> KeyPair:
    """Certificate and private key from the shared key: the same on all nodes, byte by byte. It never expires: clocks may differ."""
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
    return KeyPair(certificate.public_bytes(pem), secret)


def _context(purpose: int, trusted: bytes, own: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # `Identity.check` does, where a certificate is of one node
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted.decode("ascii", errors="replace"))
    with _in_memory(own) as path:
        context.load_cert_chain(path, password=lambda: b"")  # nobody is there to type one
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


class RenewedIdentity:
    """Holds the identity made from certificate files, and reads them again when they change. Call it for the present one; safe
    from any thread, but it reads files, so never from the main loop's.

    The server context of the first identity keeps listening: for each handshake it takes the newest one.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        ca: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = (certificate, key, ca)
        self._last_state = self._state()
        self.now = of_certificates(*self._files)
        self.now.server.sni_callback = self._handshake
        self._clock, self._looked = clock, clock()
        self._lock = threading.Lock()

    def __call__(self) -> Identity:
        """The identity now. Reads the files from time to time; where they cannot be used that is logged, and the old one stays."""
        with self._lock:
            if self._clock() - self._looked >= EVERY:
                self._looked = self._clock()
                self._look()
        return self.now

    def _look(self) -> None:
        found = self._state()
        if found == self._last_state or not all(found):
            return  # a file that is just being replaced comes back
        self._last_state = found
        try:
            self.now = of_certificates(*self._files)
            log.info("the certificate of this node was read again")
        except MldebugError as error:
            log.error("the new certificate cannot be used, the old one stays: %s", error.message)

    def _handshake(self, link: object, name: object, context: object) -> None:
        """Called by OpenSSL, which asks for the context of a host name: for every name it is the newest one."""
        link.context = self.now.server  # type: ignore[attr-defined]

    def _state(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(_state, self._files))


def _state(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
