"""What the reader child writes: one byte into a FIFO of a job, or one fixed question to a rank's worker server.

Both go to a path that a job names, so both are first opened without effect and must be what they
should be and of the rank's user; neither waits longer than its limit. On TCP an address is no
proof, since several processes may listen at one port.
"""

import contextlib
import errno
import itertools
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from enum import IntEnum

from mldebug_agents.system.child.refusals import Refusal, Refused

ASKED_FOR = 3.0  # seconds for one answer of a worker server
MAX_HEAD = 16 << 10  # bytes before the answer itself
TRIES, TRYING = 24, 0.6  # connections, and seconds, until it is the rank itself that takes one
MAX_ROWS = 1_000_000  # of a table of connections
_TRIGGER = b"1"
_PEER = struct.Struct("3i")  # SO_PEERCRED: pid, uid, gid
_WORD = struct.Struct("=I")
_ANY = {"0.0.0.0": ("127.0.0.1",), "::": ("::1", "127.0.0.1")}  # noqa: S104 - who listens on all, and how he is reached
_MAPPED = bytes(10) + b"\xff\xff"  # ::ffff:0.0.0.0/96
_NOBODYS = "0"  # inode of a connection that nobody has accepted


class WorkerServerQuestion(IntEnum):
    """The questions that a PyTorch worker server may be asked: none changes the job, or collects stacks."""

    HANDLERS = 0
    NCCL = 1
    OTHERS = 2
    STATUS = 3  # of NCCL: three numbers for each group
    PENDING = 4  # calls of NCCL


REQUESTS = {
    WorkerServerQuestion.HANDLERS: b"GET /handler/",
    WorkerServerQuestion.NCCL: b"POST /handler/dump_nccl_trace_json",
    WorkerServerQuestion.OTHERS: b"POST /handler/fr_trace_json",
    WorkerServerQuestion.STATUS: b"POST /handler/dump_nccl_trace_json?includecollectives=false",
    WorkerServerQuestion.PENDING: b"POST /handler/dump_nccl_trace_json?onlyactive=true",
}


def write_byte(handle: int, uid: int) -> None:
    """Write one byte into the FIFO behind an O_PATH descriptor.

    Raises OSError (ENXIO: nobody reads it), or `Refused` where it is none or not `uid`'s.
    """
    facts = os.fstat(handle)
    if not stat.S_ISFIFO(facts.st_mode):
        raise Refused(Refusal.NOT_A_FIFO)
    if facts.st_uid != uid:
        raise Refused(Refusal.NOT_THEIRS)
    fifo = os.open(b"/proc/self/fd/%d" % handle, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(fifo, _TRIGGER)
    finally:
        os.close(fifo)


def ask_unix(handle: int, pid: int, question: int, limit: int) -> bytes:
    """Ask the worker server on the Unix socket behind an O_PATH descriptor, if process `pid` listens there; else raises
    `Refused`. `question`: a `WorkerServerQuestion`.

    Returns the answer, at most `limit` bytes.
    """
    if not stat.S_ISSOCK(os.fstat(handle).st_mode):
        raise Refused(Refusal.NOT_A_SOCKET)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ASKED_FOR)
        connection.connect(f"/proc/self/fd/{handle}")
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(raw)[0] != pid:
            raise Refused(Refusal.OTHER_PROCESS)
        return _ask(connection, WorkerServerQuestion(question), limit)


def ask_tcp(place: str, question: int, limit: int) -> bytes:
    """Ask a worker server on the loopback interface. `place` is `PORT:PID:ADDRESS`, with the address to which it is bound.
    `question`: a `WorkerServerQuestion`. Returns the answer, at most `limit` bytes.

    PyTorch's servers share a port (SO_REUSEPORT), so nothing is sent before the kernel shows that process PID holds the
    other end. Raises `Refused` where that does not come about.
    """
    port, pid, address = place.split(":", 2)
    began = time.monotonic()
    deadline = began + ASKED_FOR
    _sockets(int(pid))
    for _ in range(TRIES):
        if time.monotonic() - began > TRYING:
            break
        with _connected(_ANY.get(address, (address,)), int(port), deadline) as connection:
            if _holder(connection, int(pid), deadline) in _sockets(int(pid)):
                return _ask(connection, WorkerServerQuestion(question), limit)
    raise Refused(Refusal.SHARED_PORT)


def _connected(addresses: tuple[str, ...], port: int, deadline: float) -> socket.socket:
    """The first of these that there is: a node may have no IPv6, and who listens on all of its addresses takes IPv4 then."""
    *others, last = addresses
    for address in others:
        with contextlib.suppress(OSError):
            return socket.create_connection((address, port), _left(deadline))
    return socket.create_connection((last, port), _left(deadline))


def _holder(connection: socket.socket, pid: int, deadline: float) -> str:
    """The inode of the other end in the network of that process. Waits until somebody has accepted it; raises TimeoutError."""
    pause = 0.001
    while (inode := _inode(connection, pid)) == _NOBODYS:
        time.sleep(min(pause, _left(deadline)))
        pause = min(2 * pause, 0.05)
    return inode


def _inode(connection: socket.socket, pid: int) -> str:
    """`_NOBODYS` also where the table does not tell of it. Who listens by IPv6 has IPv4 connections as mapped addresses."""
    ends = [_packed(end) for end in (connection.getpeername(), connection.getsockname())]
    for table in ("tcp", "tcp6"):
        wide = table == "tcp6"
        wanted = [_row(address, port, wide=wide) for address, port in ends]
        for words in _rows(f"/proc/{pid}/net/{table}"):
            if words[1:3] == wanted and len(words) > 9:
                return words[9]
    return _NOBODYS


def _rows(path: str) -> Iterator[list[str]]:
    """Of no table, as that of IPv6 may be, no rows."""
    with (
        contextlib.suppress(FileNotFoundError),
        open(path, encoding="ascii", errors="replace") as rows,
    ):
        for line in itertools.islice(rows, 1, MAX_ROWS):
            yield line.split(maxsplit=10)


def _packed(end: tuple[str, int]) -> tuple[bytes, int]:
    family = socket.AF_INET6 if ":" in end[0] else socket.AF_INET
    return socket.inet_pton(family, end[0]), end[1]


def _row(address: bytes, port: int, *, wide: bool) -> str:
    """As the kernel's tables spell it, in words of the machine's own byte order."""
    packed = _MAPPED + address if wide and len(address) == 4 else address
    return "".join(f"{word:08X}" for (word,) in _WORD.iter_unpack(packed)) + f":{port:04X}"


def _sockets(pid: int) -> set[str]:
    """The inodes of all that this process holds open; raises `Refused` where it may not be seen."""
    found = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    except PermissionError:
        raise Refused(Refusal.UNSEEN) from None
    return {one[8:-1] for one in found if one.startswith("socket:[")}


def _left(deadline: float) -> float:
    """Seconds; raises TimeoutError where none are left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _ask(connection: socket.socket, question: WorkerServerQuestion, limit: int) -> bytes:
    deadline = time.monotonic() + ASKED_FOR
    head = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    connection.sendall(REQUESTS[question] + head)
    data = bytearray()
    while (end := _end(data)) is None or len(data) < end:
        connection.settimeout(_left(deadline))
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        data += chunk
        if len(data) > limit + MAX_HEAD:
            raise Refused(Refusal.TOO_LARGE)
    return bytes(data[data.index(b"\r\n\r\n") + 4 : end])


def _end(data: bytearray) -> int | None:
    """How long the whole answer is; None as long as that is not told. Raises `Refused` for what is no such answer."""
    head, found, _ = bytes(data[:MAX_HEAD]).partition(b"\r\n\r\n")
    if not found:
        if len(data) >= MAX_HEAD:
            raise Refused(Refusal.NO_WORKER_SERVER)
        return None
    first, *lines = head.split(b"\r\n")
    if not first.startswith(b"HTTP/1.") or first.split(b" ")[1:2] != [b"200"]:
        raise Refused(Refusal.NO_WORKER_SERVER)
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            return len(head) + 4 + int(value)
    raise Refused(Refusal.NO_WORKER_SERVER)
