"""A certificate authority for tests, and the certificates that it signs for nodes."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mldebug_agents.cluster.peers.net.identity import Identity, of_certificates


class Site:
    """A certificate authority, and what it has signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.key = Ed25519PrivateKey.generate()
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, folder.name)])
        self.ca = folder / "ca.pem"
        authority = x509.BasicConstraints(ca=True, path_length=0)
        self._write("ca", self.key, self._signed(self.name, self.key, authority, -1, 30))

    def node(self, *names: str, since: float = -1, until: float = 30) -> Identity:
        """Days from now."""
        key = Ed25519PrivateKey.generate()
        alternative = x509.SubjectAlternativeName([_general(one) for one in names])
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        self._write(names[0], key, self._signed(name, key, alternative, since, until))
        files = (self.folder / f"{names[0]}.pem", self.folder / f"{names[0]}.key", self.ca)
        return of_certificates(*files)

    def _signed(
        self,
        name: x509.Name,
        key: Ed25519PrivateKey,
        more: x509.ExtensionType,
        since: float,
        until: float,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            self.name, name, key.public_key(), x509.random_serial_number()
        )
        builder = builder.not_valid_before(now + datetime.timedelta(days=since))
        builder = builder.not_valid_after(now + datetime.timedelta(days=until))
        return builder.add_extension(more, critical=False).sign(self.key, None)

    def _write(self, name: str, key: Ed25519PrivateKey, certificate: x509.Certificate) -> None:
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        (self.folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
        file = self.folder / f"{name}.key"
        file.touch(0o600)
        file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
