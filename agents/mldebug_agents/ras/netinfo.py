"""What the kernel says of the network namespace that we are in: its addresses, and whose process holds a connection."""

import ipaddress
import re
import socket
import struct
from pathlib import Path

MAX_BYTES = 4 << 20
MAX_ADDRESSES = 256
_LOCAL = re.compile(r"\|-- (\d[\d.]{6,14})\n\s+/32 host LOCAL")
_OURS = Path(
    "/proc/self/net"
)  # not /proc/net: that is of the same namespace, but of the thread that was first


def own_addresses(folder: Path = _OURS) -> tuple[str, ...]:
    """All addresses of this namespace, as NCCL writes them."""
    four = dict.fromkeys(_LOCAL.findall(_read(folder / "fib_trie")))
    six = [line.split()[0] for line in _read(folder / "if_inet6").splitlines() if line]
    readable = [str(ipaddress.IPv6Address(bytes.fromhex(one))) for one in six if len(one) == 32]
    return tuple([*four, *readable][:MAX_ADDRESSES])


def owner(link: socket.socket, folder: Path = _OURS) -> int | None:
    """The user id of the process at the other end of a connection within this node; None where the kernel tells none.

    To be asked after it has said something: before somebody accepts a connection, it is nobody's.
    """
    ours, theirs = link.getsockname(), link.getpeername()
    table = "tcp6" if link.family is socket.AF_INET6 else "tcp"
    wanted = [_hex(*theirs[:2]), _hex(*ours[:2])]
    for line in _read(folder / table).splitlines()[1:]:
        words = line.split()
        if words[1:3] == wanted and words[7].isdecimal():
            return int(words[7])
    return None


def _hex(host: str, port: int) -> str:
    """As the kernel's tables spell it: words of the machine's own byte order."""
    packed = ipaddress.ip_address(host).packed
    words = struct.unpack(f"!{len(packed) // 4}I", packed)
    native = struct.unpack(f"={len(words)}I", packed)
    return "".join(f"{word:08X}" for word in native) + f":{port:04X}"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
