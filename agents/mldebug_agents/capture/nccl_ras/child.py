"""Asks NCCL RAS of one job, in a child process of its own, because it may have to enter the job's
network namespace and the answer may be large.

It connects to this node only, and takes an answer only from a process of the job that tells of the
job's own processes: several jobs of a user share the port, and which of them answers is chance.
Containers on the host's network may use the same pids, so one of our ranks must hold the
connection; where nobody may see who holds it, the answer has to name all ranks that live here.

Reads the agent's network namespace from /proc/net: its addresses, and which user and socket own
the other end of a local connection.
"""

import ctypes
import ipaddress
import itertools
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from mldebug.capture.nccl_ras.answer import MAX_BYTES, parse
from mldebug.capture.nccl_ras.communicators import few
from mldebug.capture.nccl_ras.process_map import RasWorld, home, pids_at, world_of
from mldebug.capture.nccl_ras.progress import brief
from mldebug.core.model import NcclRas
from mldebug.core.redact import clean
from mldebug_agents.capture.nccl_ras.conversation import RasConnection, RasConnectionError
from mldebug_agents.jobs.ranks.ras_address import RasAddress, addresses, is_own
from mldebug_agents.system.child.link import ChildLink
from mldebug_agents.system.host import Host

MAX_TABLE_BYTES = 4 << 20
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
            return file.read(MAX_TABLE_BYTES).decode(errors="replace")
    except OSError:
        return ""  # the process has ended


NAME = "ras"
MAX_REASON = 300  # characters
TRIES = 6  # connections: other jobs may answer at the same port, and stopped processes accept and say nothing
_CLONE_NEWNET = 0x40000000
_ENDED = "ZX"  # states of a process
_ANOTHER = "another job answers there, and this one not"


class RasOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A question about one job.

    `network`: inode of the network namespace of process `pid`, which is entered first; 0: the
    agent's own.
    """

    address: str  # `RankIdentity.nccl_ras`
    pids: tuple[int, ...]  # of the job's ranks here, in their own pid namespace
    host_pids: tuple[int, ...]  # the same processes, as the host sees them
    uid: int  # of the job
    seconds: float
    pid: int = 0
    network: int = 0
    whole: bool = True  # with the ranks that matter; else the sums, and which process is which rank


class RasReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of NCCL RAS, or in `error` why there is none."""

    answer: NcclRas | None = None
    world: RasWorld | None = None  # with the sums alone
    error: str = ""
    way_out: str = ""
    silent: bool = False  # nobody listens there


def serve(connection: socket.socket) -> None:
    """The main function of the child process: reads one order, sends one answer."""
    link = ChildLink(connection, msgspec.msgpack.Decoder(RasOrder))
    link.send(carry_out(link.receive()))


def carry_out(order: RasOrder) -> RasReply:
    """Ask NCCL RAS as ordered; never raises, whatever answers at the address."""
    deadline = time.monotonic() + order.seconds
    try:
        where = addresses(order.address)
        if order.network:
            _enter(order.pid, order.network)
    except ValueError as error:
        return _refused(str(error))
    except OSError as error:
        return _closed(error)
    return _ask(order, [one for one in where if is_own(one.host)], deadline)


def _closed(error: OSError) -> RasReply:
    if isinstance(error, PermissionError):
        why = "the job has a network of its own, which the agent may not enter"
        return RasReply(error=why, way_out="give the agent CAP_SYS_ADMIN (docs/rights.md)")
    why = (error.strerror or str(error)).lower()
    return RasReply(error=f"the job's network cannot be entered: {why}")


def _enter(pid: int, inode: int) -> None:
    """Into the network namespace of a process, if it is still the one that was seen."""
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_ino != inode:
            raise ProcessLookupError(0, "its process has changed")
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(handle)


def _ask(order: RasOrder, where: list[RasAddress], deadline: float) -> RasReply:
    """Until one answer is our job's; else why the last try failed."""
    if not where:
        return _refused(f"NCCL_RAS_ADDR is {order.address}, which is no address of this node")
    last = RasReply(error="nobody answers")
    for number in range(TRIES):
        place = where[number % len(where)]
        last, again = _try(order, place, deadline)
        if not again:
            where.remove(place)
        if last.answer is not None or not where or time.monotonic() >= deadline:
            break
    return last


def _try(order: RasOrder, place: RasAddress, deadline: float) -> tuple[RasReply, bool]:
    """The reply of one address, and whether another try there may reach another process."""
    living = _living(order)
    shown: list[bool] = []
    try:
        data = RasConnection(place, deadline).ask(
            MAX_BYTES, lambda link: shown.append(_is_held(link, order.uid, living))
        )
        answer = parse(data)
    except RasConnectionError as error:
        return _refused(str(error), silent=error.silent), error.again
    except ValueError as error:
        return _refused(f"its answer is not believed: {error}"), False
    answer = msgspec.structs.replace(answer, own=own_addresses())
    here = home(answer, order.pids)
    if not here or not (shown[0] or pids_at(answer, here).issuperset(living.values())):
        return RasReply(error=_ANOTHER), True
    if order.whole:
        return RasReply(answer=few(answer, order.pids)), False
    return RasReply(answer=brief(answer), world=world_of(answer, order.pids)), False


def _refused(why: str, *, silent: bool = False) -> RasReply:
    """What the job or its peer has written may stand in it, so it is cleaned and cut."""
    return RasReply(error=clean(why, MAX_REASON), silent=silent)


def _living(order: RasOrder) -> dict[int, int]:
    """Those of its ranks that have not ended: pid as we see it -> as it sees it itself."""
    host = Host()
    found = {pid: host.brief(pid) for pid in order.host_pids}
    both = zip(order.host_pids, order.pids, strict=True)
    return {
        pid: own for pid, own in both if (one := found[pid]) is not None and one.state not in _ENDED
    }


def _is_held(link: socket.socket, uid: int, living: Iterable[int]) -> bool:
    """Is the other end shown to be one of these processes? False: nobody may see. Raises RasConnectionError where it is not."""
    found = socket_owner(link)
    if found is None:
        raise RasConnectionError("the kernel does not tell whose process answers there", again=True)
    if found.uid != uid:
        raise RasConnectionError(f"a process of another user (uid {found.uid}) answers there")
    unreadable = False
    for pid in living:
        if held := holds_socket(pid, found.inode):
            return True
        unreadable = unreadable or held is None
    if not unreadable:
        raise RasConnectionError(_ANOTHER, again=True)
    return False
