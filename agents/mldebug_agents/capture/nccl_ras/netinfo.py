"""Reads the agent's network namespace from /proc/net: its addresses, and which user and socket own
the other end of a local connection.
"""

import ipaddress
import itertools
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_BYTES = 4 << 20
MAX_CONNECTIONS = 1_000_000
MAX_ADDRESSES = 256
MAX_FILES = 65_536  # of one process
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_TABLES = ("tcp", "tcp6")
_MAPPED = bytes(10) + b"\xff\xff"  # ::ffff:0.0.0.0/96
_NOBODYS = "0"  # inode of a connection that no process holds
_LOCAL = re.compile(r"\|-- (\d[\d.]{6,14})\n\s+/32 host LOCAL")
_OURS = Path(
    "/proc/self/net"
)  # not /proc/net: that is of the same namespace, but of the thread that was first


def own_addresses() -> tuple[str, ...]:
    """The IPv4 and IPv6 addresses of this network namespace as text, at most `MAX_ADDRESSES`."""
    four = dict.fromkeys(_LOCAL.findall(_read(_OURS / "fib_trie")))
    six = [line.split()[0] for line in _read(_OURS / "if_inet6").splitlines() if line]
    readable = [str(ipaddress.IPv6Address(bytes.fromhex(one))) for one in six if len(one) == 32]
    return tuple([*four, *readable][:MAX_ADDRESSES])


class SocketOwner(NamedTuple):
    """The owner of one end of a connection: a user id, and the inode of the socket."""

    uid: int
    inode: int


def socket_owner(link: socket.socket, folder: Path = _OURS) -> SocketOwner | None:
    """The owner of the other end of a connection on this node; None where the kernel does not say.

    Ask only after the other end has sent something and before it closes: otherwise no process owns
    it, and the kernel names user 0. An IPv6 listener takes IPv4 connections, too; those stand in
    the other table, with mapped addresses.
    """
    ends = [(ipaddress.ip_address(host), port) for host, port in _ends(link)]
    for table in _TABLES:
        wanted = [_hex(address, port, table) for address, port in ends]
        for words in _rows(folder / table):
            if words[1:3] == wanted and words[9] != _NOBODYS:
                return SocketOwner(int(words[7]), int(words[9]))
    return None


def holds_socket(pid: int, inode: int) -> bool | None:
    """Whether process `pid` has the socket with this inode open, among its first `MAX_FILES` descriptors.

    None where its descriptors may not be read.
    """
    try:
        with os.scandir(f"/proc/{pid}/fd") as files:
            return any(_is_socket(one.path, inode) for one in itertools.islice(files, MAX_FILES))
    except PermissionError:
        return None
    except OSError:
        return False


def _is_socket(path: str, inode: int) -> bool:
    try:
        return os.readlink(path) == f"socket:[{inode}]"
    except FileNotFoundError:  # closed since
        return False


def _ends(link: socket.socket) -> Iterator[tuple[str, int]]:
    """As the other side sees them: its own end first."""
    for host, port, *_ in (link.getpeername(), link.getsockname()):
        yield host.partition("%")[0], port


def _rows(path: Path) -> Iterator[list[str]]:
    """Line by line: a busy node has tens of thousands."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            for line in itertools.islice(file, 1, MAX_CONNECTIONS):
                if len(words := line.split(maxsplit=10)) > 9:
                    yield words
    except OSError:
        return  # the process has ended


def _hex(address: Address, port: int, table: str) -> str:
    """As the kernel's tables spell it, in words of the machine's own byte order; "" for one that this table cannot hold."""
    four = address if address.version == 4 else address.ipv4_mapped
    if table == "tcp":
        packed = four.packed if four else b""
    else:
        packed = _MAPPED + four.packed if four else address.packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}" if packed else ""


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""  # the process has ended
