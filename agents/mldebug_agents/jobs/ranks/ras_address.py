"""The address at which a job's NCCL RAS (NCCL's status service) listens. The job chooses it, so
only this node is ever asked, and no name is looked up.

NCCL's own rule: `NCCL_RAS_ADDR` as `HOST:PORT` or `[IPV6]:PORT`, else `localhost:28028`.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mldebug.core.redact import clean

DEFAULT = "localhost:28028"
OFF = "off"
BY_RAS = "nccl_ras"  # stands for the launcher where NCCL RAS has told the rank
_LOOPBACKS = ("127.0.0.1", "::1")
_ANY = {"0.0.0.0": ("127.0.0.1",), "::": _LOOPBACKS}  # noqa: S104 - what a job listens on
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([\w.-]{1,255})):(\d{1,5})", re.ASCII)
_PROBE = 9  # a port; no packet is sent


class RasAddress(NamedTuple):
    """An address at which NCCL RAS may listen."""

    host: str
    port: int


def setting(environ: Mapping[str, str]) -> str:
    """NCCL RAS's settings in a rank's environment: its address, "" for the default, or `OFF`.

    As in `RankIdentity.nccl_ras`.
    """
    if environ.get("NCCL_RAS_ENABLE", "").strip() == "0":
        return OFF
    return clean(environ.get("NCCL_RAS_ADDR", "").strip(), 100)


def addresses(value: str) -> tuple[RasAddress, ...]:
    """The addresses to try, in order, for such a setting.

    Raises ValueError with the reason where it is no address that may be asked.
    """
    match = _ADDRESS.fullmatch(value or DEFAULT)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ValueError(f"NCCL_RAS_ADDR is {value!r}, which is no address and port")
    hosts = _hosts(match[1] or match[2])
    return tuple(RasAddress(host, int(match[3])) for host in hosts)


def _hosts(name: str) -> Iterable[str]:
    if name.lower() in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return _LOOPBACKS
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise ValueError(
            f"NCCL_RAS_ADDR names {name}: only addresses and localhost are asked"
        ) from None
    return _ANY.get(str(address), (str(address),))


def is_own(host: str) -> bool:
    """Whether this address belongs to the network namespace of this process, since only then packets can come from it.

    Sends nothing.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _PROBE))
            name: tuple[str, int] = probe.getsockname()
    except OSError:
        return False  # no route leads there
    return ipaddress.ip_address(name[0].partition("%")[0]) == ipaddress.ip_address(host)
