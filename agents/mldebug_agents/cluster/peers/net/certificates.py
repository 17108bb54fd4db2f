"""Certificates of single nodes: which names they are for, and why a handshake failed, in words. Pure."""

import ipaddress
import ssl
from collections.abc import Mapping
from typing import Any

from mldebug.core.redact import clean

MAX_NAMES = 4  # told
_VERIFIED = {
    9: "its certificate is not valid yet, by the clock here",
    10: "its certificate has expired, by the clock here",
}
_ALERTS = {
    "CERTIFICATE_EXPIRED": "it says that the certificate of this node has expired",
    "UNKNOWN_CA": "it says that the certificate of this node is not of its CA",
    "BAD_CERTIFICATE": "it does not take the certificate of this node: is it valid yet, by its clock?",
    "CERTIFICATE_REQUIRED": "it asks for a certificate, and got none",
}
_STRANGE = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "HTTP_REQUEST": "it speaks HTTP without TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
}

Certificate = Mapping[str, Any]
"""As `ssl.SSLSocket.getpeercert` tells it."""


class CertificateError(Exception):
    """A valid certificate that belongs to another node than expected; the message says to which."""


def names_of(certificate: Certificate) -> frozenset[str]:
    """The names and addresses that a certificate is for, in small letters."""
    names = certificate.get("subjectAltName", ())
    return frozenset(value.lower() for kind, value in names if kind in ("DNS", "IP Address"))


def says(certificate: Certificate, name: str) -> bool:
    """Whether a certificate is for this host name or address. A name without a domain matches that name in any domain."""
    names, name = names_of(certificate), name.lower()
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        short = name.partition(".")[0]
        return name in names or short in names or ("." not in name and short in _shorts(names))
    return any(_same(address, each) for each in names)


def _shorts(names: frozenset[str]) -> frozenset[str]:
    return frozenset(each.partition(".")[0] for each in names if not each[:1].isdecimal())


def _same(address: ipaddress.IPv4Address | ipaddress.IPv6Address, text: str) -> bool:
    try:
        return ipaddress.ip_address(text) == address
    except ValueError:
        return False


def owners(certificate: Certificate) -> str:
    """Some of the names in the certificate, as text for people; "nobody" where there are none."""
    names = ", ".join(sorted(names_of(certificate))[:MAX_NAMES]) or "nobody"
    return clean(names, 100)


def is_strange(error: Exception) -> bool:
    """Whether this TLS error shows that the other end is no agent (a browser, a port scan)."""
    return any(part in reason_of(error) for part in _STRANGE)


def in_words(error: Exception) -> str:
    """Why a TLS handshake failed, in words about the other end."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = _VERIFIED.get(error.verify_code)
        return words or f"its certificate is not of cluster.ca ({error.verify_message})"
    reason = reason_of(error)
    return next(
        (words for part, words in (_STRANGE | _ALERTS).items() if part in reason),
        f"no handshake: {reason}",
    )


def reason_of(error: Exception) -> str:
    """OpenSSL's name of the error."""
    return getattr(error, "reason", None) or type(error).__name__
